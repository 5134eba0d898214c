//! Programs that run beside the measurement and end with it.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use weft_testkit::usage::{Usage, anonymous_megabytes};

pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let silent = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(silent.spawn().unwrap())
    }

    pub(crate) fn weft() -> Command {
        Command::new(env!("CARGO_BIN_EXE_weft"))
    }

    /// Megabytes of memory that no file can give back.
    pub(crate) fn anonymous_memory(&self) -> f64 {
        anonymous_megabytes(self.0.id()).unwrap()
    }

    /// Processor time of all its threads so far.
    pub(crate) fn processor_time(&self) -> Duration {
        Usage::of(self.0.id()).unwrap().own
    }

    /// Without a chance to put anything in order.
    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// As an operator does, and waits for the end.
    pub(crate) fn terminate(mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        assert!(self.0.wait().unwrap().success());
    }

    fn end(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}
