//! Programs that run beside the measurement and end with it.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

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
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:"));
        let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
        kilobytes.parse::<f64>().unwrap() / 1024.0
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
