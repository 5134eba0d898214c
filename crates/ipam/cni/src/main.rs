//! The program `weft-cni`: environment and standard input in, JSON out. The library does the rest.

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

use weft_cni::{Limits, call};

fn main() -> ExitCode {
    let output = call(
        &|name| env::var_os(name),
        &mut io::stdin().lock(),
        &Limits::default(),
    );
    if let Some(stderr) = &output.stderr {
        // Writing to a closed stderr must not fail the call.
        let _ = writeln!(io::stderr(), "{stderr}");
    }
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(output.text.as_bytes())
        .and_then(|()| stdout.flush());
    match (written, output.succeeded) {
        (Ok(()), true) => ExitCode::SUCCESS,
        // The runtime did not get the result, so it must treat the call as failed and clean up.
        _ => ExitCode::FAILURE,
    }
}
