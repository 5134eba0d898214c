//! Starting programs, with progress for the person who waits.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, bail, ensure};

use crate::workspace;

/// Cargo as the one that runs us, at the root of the checkout.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace::root());
    // Variables of this package would make build scripts believe that theirs has changed:
    // ring's watches these variables, and everything that speaks TLS was built again whenever cargo
    // was called once directly and once from here.
    for (name, _) in env::vars_os() {
        let is_set_by_cargo = |prefix: &str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        if is_set_by_cargo("CARGO_PKG_") || is_set_by_cargo("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    if env::var("CI").as_deref() == Ok("true") {
        // Nothing is built a second time there: preparing for it only takes time.
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

/// Runs to the end with the output going to the terminal.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("start {}", line(command)))?;
    ensure!(status.success(), "{}: {status}", line(command));
    Ok(())
}

/// Runs to the end and returns stdout; on failure stderr is part of the error.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .output()
        .with_context(|| format!("start {}", line(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}: {}\n{}",
            line(command),
            output.status,
            stderr.trim_end()
        );
    }
    String::from_utf8(output.stdout).with_context(|| format!("output of {}", line(command)))
}

/// Runs only to see whether it succeeds.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// The full path of a program; Debian keeps the administrators' directories out of `PATH`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let administrators = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(administrators)
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// A numbered sequence of steps that says what runs and how long each took.
pub(crate) struct Progress {
    total: usize,
    done: usize,
    began: Instant,
}

impl Progress {
    pub(crate) fn of(total: usize) -> Self {
        Self {
            total,
            done: 0,
            began: Instant::now(),
        }
    }

    /// Runs one step; a failure is named after it.
    pub(crate) fn step(
        &mut self,
        name: &str,
        work: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.done += 1;
        let Self { total, done, .. } = *self;
        eprintln!("[{done}/{total}] {name}");
        let began = Instant::now();
        let outcome = work().with_context(|| format!("step {done}/{total}, {name}"));
        let seconds = began.elapsed().as_secs_f64();
        let verdict = if outcome.is_ok() { "done" } else { "FAILED" };
        eprintln!("[{done}/{total}] {name}: {verdict} in {seconds:.1} s");
        outcome
    }

    pub(crate) fn finish(self, what: &str) {
        eprintln!("{what} in {:.1} s", self.began.elapsed().as_secs_f64());
    }
}

fn line(command: &Command) -> String {
    let program = Path::new(command.get_program())
        .file_name()
        .unwrap_or_default();
    let words: Vec<_> = [program]
        .into_iter()
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    format!("`{}`", words.join(" "))
}
