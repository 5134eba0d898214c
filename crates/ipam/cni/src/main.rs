//! The program: environment and standard input in, JSON out. Everything else is in the library.

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
    if let Some(talk) = &output.talk {
        // Nobody listens to a closed stderr.
        let _ = writeln!(io::stderr(), "{talk}");
    }
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(output.text.as_bytes())
        .and_then(|()| stdout.flush());
    match (written, output.succeeded) {
        (Ok(()), true) => ExitCode::SUCCESS,
        // A result that did not arrive is none: the runtime has to clean up.
        _ => ExitCode::FAILURE,
    }
}
