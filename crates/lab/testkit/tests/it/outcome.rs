//! Tests that a failure in a lab fails the test, with its output and the `nsenter` line.

use std::{
    env, fs,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use weft_testkit::lab;

/// Not a test of its own but the subject of the others, which run it with `WEFT_SUBJECT` set.
#[test]
fn subject() {
    let role = env::var("WEFT_SUBJECT").unwrap_or_default();
    match role.as_str() {
        "" => lab::inside(|lab| assert!(lab.nsenter().starts_with("nsenter --target "))),
        "fails" => lab::inside(|_| panic!("the pattern is torn")),
        "impossible" => lab::with_programs(&["no-such-program"], |_| ()),
        "misnamed" => not_a_test(),
        socket => lab::inside(|_| hang_on(socket)),
    }
}

/// A lab called from a function that libtest does not know.
fn not_a_test() {
    lab::inside(|_| ());
}

/// Sends one byte and then keeps the connection open until this process ends.
fn hang_on(socket: &str) {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.write_all(b"h").unwrap();
    loop {
        thread::park();
    }
}

fn subject_as(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "outcome::subject"]);
    command.env_remove("CI").env("WEFT_SUBJECT", role);
    command
}

/// Runs it to its end: true if it passed, and all its output.
fn outcome_of(command: &mut Command) -> (bool, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = [stdout, stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat();
    (status.success(), text)
}

/// Skips (or with `CI=true` fails) like any other lab where none can be made.
fn labs_work_here() -> bool {
    let (_, output) = outcome_of(&mut subject_as(""));
    if output.contains("SKIPPED") {
        lab::inside(|_| unreachable!("one lab was skipped and another was not"));
    }
    !output.contains("SKIPPED")
}

#[test]
fn a_panic_inside_fails_the_test_with_its_output_and_the_nsenter_line() {
    if !labs_work_here() {
        return;
    }
    let (passed, output) = outcome_of(&mut subject_as("fails"));
    assert!(!passed, "{output}");
    for part in [
        "the pattern is torn",
        "nsenter --target ",
        "WEFT_LAB_HOLD=1",
    ] {
        assert!(output.contains(part), "no {part:?} in:\n{output}");
    }
}

#[test]
fn a_lab_that_cannot_be_made_is_a_loud_skip_and_a_failure_in_ci() {
    let (passed, output) = outcome_of(&mut subject_as("impossible"));
    assert!(passed, "{output}");
    assert!(
        output.contains("SKIPPED outcome::subject: `no-such-program` is not"),
        "{output}"
    );

    let (passed, output) = outcome_of(subject_as("impossible").env("CI", "true"));
    assert!(!passed, "a kernel test that did not run passed:\n{output}");
    assert!(output.contains("CI=true forbids skipping it"), "{output}");
}

#[test]
fn a_lab_in_a_user_namespace_works_for_root_too() {
    let (passed, output) = outcome_of(subject_as("").env("WEFT_LAB_ROOTLESS", "1"));
    assert!(passed, "{output}");
}

#[test]
fn a_lab_whose_test_libtest_cannot_find_does_not_pass() {
    if !labs_work_here() {
        return;
    }
    let (passed, output) = outcome_of(&mut subject_as("misnamed"));
    assert!(!passed, "{output}");
    assert!(
        output.contains("the inner process did not run the test"),
        "{output}"
    );
}

#[test]
fn a_lab_dies_with_the_process_that_started_it() {
    if !labs_work_here() {
        return;
    }
    let directory = env::temp_dir().join(format!("weft-lab-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let socket = directory.join("hello");
    let listener = UnixListener::bind(&socket).unwrap();
    for rootless in [false, true] {
        let mut outer = subject_as(socket.to_str().unwrap());
        outer
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if rootless {
            outer.env("WEFT_LAB_ROOTLESS", "1");
        }
        let mut outer = outer.spawn().unwrap();
        let (mut inner, _) = listener.accept().unwrap();
        inner
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        inner.read_exact(&mut [0]).unwrap();

        outer.kill().unwrap();
        outer.wait().unwrap();
        let left = inner
            .read(&mut [0])
            .expect("the inner process outlived the outer one");
        assert_eq!(left, 0);
    }
    fs::remove_dir_all(&directory).unwrap();
}
