//! A throw-away network for one test, made of namespaces.
//!
//! A test calls [`inside`] (or [`with_programs`]) with a closure. The first time, the test binary
//! runs itself again, only this test, as the first process of fresh network, mount and process
//! namespaces with a private `/run`; there the closure runs. All that it starts or configures dies
//! with that process, so a lab can neither leak nor touch the host's network.
//!
//! ```no_run
//! # // `no_run`: a doc test is not a test binary that could run itself again.
//! use weft_testkit::lab;
//!
//! // #[test]
//! fn a_namespace_has_its_own_loopback() {
//!     lab::inside(|lab| {
//!         let pod = lab.namespace("pod");
//!         assert!(pod.run(|| std::net::TcpStream::connect("127.0.0.1:1")).is_err());
//!     });
//! }
//! ```
//!
//! # Privileges
//! Root gets plain namespaces; everyone else (and root with `WEFT_LAB_ROOTLESS=1`) gets them
//! inside a user namespace in which they are root. Where neither works the test says so on stderr
//! and passes; with `CI=true` it fails, so that no kernel test passes without running.
//!
//! # When a test fails
//! The failure carries everything the inner process printed and the `nsenter` line that would
//! enter its namespaces. Run the test with `WEFT_LAB_HOLD=1` to keep them alive for that.
//!
//! # Where to start reading
//! `launch.rs` is the outer half, [`Lab`] the inner one, `privilege.rs` decides how to get in.

use std::{
    any::type_name,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process, thread,
};

mod bridge;
mod launch;
mod namespace;
mod pods;
mod privilege;
mod program;

pub use bridge::Bridge;
pub use namespace::Namespace;
pub use pods::{PodNetwork, node_addresses, pod_addresses, pod_ranges, speak};

use crate::lab::{launch::Launch, privilege::Privilege};

/// Carries the test's name to the inner process, which recognises itself by it.
const TEST_VARIABLE: &str = "WEFT_LAB_TEST";
/// Carries the chosen [`Privilege`] to the inner process.
const PRIVILEGE_VARIABLE: &str = "WEFT_LAB_PRIVILEGE";
/// Printed by the inner process when the closure returned: without it the outer half cannot tell
/// a passed test from a name that matched no test at all.
const FINISHED: &str = "weft-lab: finished";

/// Runs `test` in a network of its own.
///
/// Call it once in a `#[test]` function. Code before the call runs in both processes, code after it
/// only in the outer one, on the host.
///
/// # Panics
/// If the closure panics, and with `CI=true` also if no lab can be made here.
pub fn inside<F: FnOnce(&Lab)>(test: F) {
    with_programs(&[], test);
}

/// [`inside`], for a test that needs these programs besides `ip`.
///
/// A missing program is treated like missing privileges: a loud skip, a failure with `CI=true`.
pub fn with_programs<F: FnOnce(&Lab)>(programs: &[&'static str], test: F) {
    let name = test_name::<F>();
    if env::var(TEST_VARIABLE).is_ok_and(|inner| inner == name) {
        run_inner(test);
    }
    let launch = match Privilege::available(programs) {
        Ok(privilege) => Launch::new(name, privilege),
        Err(unavailable) => return skip(name, &unavailable.to_string()),
    };
    if let Err(failure) = launch.run() {
        panic!("{failure}");
    }
}

/// The namespaces a test runs in. Exists only inside of them.
pub struct Lab {
    privilege: Privilege,
}

impl Lab {
    /// Makes a network namespace with its loopback up.
    pub fn namespace(&self, name: &str) -> Namespace {
        Namespace::create(name)
    }

    /// Makes a bridge in the lab's own namespace, up and without address.
    pub fn bridge(&self, name: &str) -> Bridge {
        Bridge::create(name)
    }

    /// Joins two namespaces by a veth pair whose ends carry the given device names.
    pub fn connect(&self, left: (&Namespace, &str), right: (&Namespace, &str)) {
        let ((left, left_device), (right, right_device)) = (left, right);
        let (left, right) = (left.name(), right.name());
        program::ip(&format!(
            "link add {left_device} netns {left} type veth peer name {right_device} netns {right}"
        ));
        program::ip(&format!("-n {left} link set {left_device} up"));
        program::ip(&format!("-n {right} link set {right_device} up"));
    }

    /// Runs a program in the lab's own namespace and returns what it wrote to stdout.
    ///
    /// # Panics
    /// When it cannot be started or exits with anything but 0.
    pub fn program(&self, program: &str, arguments: &[&str]) -> String {
        program::output(program::command(program).args(arguments))
    }

    /// The command line that enters this lab from a shell on the host.
    pub fn nsenter(&self) -> String {
        // procfs is still the host's, so this link names the process as the host sees it.
        let pid = fs::read_link("/proc/self").unwrap_or_else(|_| "PID".into());
        format!(
            "nsenter --target {} {}",
            pid.display(),
            self.privilege.nsenter_flags()
        )
    }

    fn enter() -> Self {
        let privilege = env::var(PRIVILEGE_VARIABLE)
            .ok()
            .and_then(|text| Privilege::parse(&text))
            .expect("the outer process passes its privilege on");
        // xtables.lock and the netns names live there; the host's must not be shared.
        program::output(program::command("mount").args(["-t", "tmpfs", "tmpfs", "/run"]));
        program::ip("link set lo up");
        Self { privilege }
    }
}

fn run_inner<F: FnOnce(&Lab)>(test: F) -> ! {
    let lab = Lab::enter();
    let outcome = catch_unwind(AssertUnwindSafe(|| test(&lab)));
    let Err(panic) = outcome else {
        println_raw(FINISHED);
        // Code after the lab in the test runs in the outer process only.
        process::exit(0);
    };
    println_raw(&format!(
        "\nweft-lab: to enter the namespaces: {}",
        lab.nsenter()
    ));
    if launch::hold_requested() {
        println_raw("weft-lab: keeping the namespaces until interrupted");
        loop {
            thread::park();
        }
    }
    println_raw("weft-lab: removing the namespaces; WEFT_LAB_HOLD=1 keeps them");
    resume_unwind(panic);
}

fn skip(name: &str, reason: &str) {
    assert!(
        env::var("CI").as_deref() != Ok("true"),
        "cannot run {name}, and CI=true forbids skipping it: {reason}"
    );
    println_raw(&format!("\nweft-lab: SKIPPED {name}: {reason}"));
}

/// Writes past libtest's capture, which only sees the `print` macros.
fn println_raw(text: &str) {
    use std::io::Write as _;
    // A closed stderr must not fail a test.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// The name by which libtest knows the function that contains the closure `F`.
///
/// The thread's name would be the obvious source, but with `--test-threads=1` it is `main`.
fn test_name<F>() -> &'static str {
    let closure = type_name::<F>();
    let function = closure.split("::{{closure}}").next().unwrap_or(closure);
    function
        .split_once("::")
        .map_or(function, |(_crate, path)| path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of<F: FnOnce()>(_: F) -> &'static str {
        test_name::<F>()
    }

    #[test]
    fn a_closure_knows_the_test_it_is_in() {
        assert_eq!(
            name_of(|| ()),
            "lab::tests::a_closure_knows_the_test_it_is_in"
        );
        let nested = || name_of(|| ());
        assert_eq!(nested(), "lab::tests::a_closure_knows_the_test_it_is_in");
    }
}
