//! One CNI call, from environment and standard input to output and exit code.

use std::{
    any::Any,
    ffi::OsString,
    io::{self, Read},
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    Code, Command, Fault, Invocation, NetworkConfig, SpecVersion, config,
    logfile::{self, Line},
    outcome::Outcome,
    verbs::{Done, Verbs},
};

/// Upper bound on the length of standard input: many times what a configuration with every
/// attachment of a node needs.
pub const INPUT_LIMIT: u64 = 1 << 20;

/// Time limits of a call.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// ADD, which may have to wait for addresses.
    pub add: Duration,
    /// DEL, before the release is queued.
    pub delete: Duration,
    /// All other commands.
    pub other: Duration,
}

impl Default for Limits {
    /// Well below the two minutes that a kubelet waits for its runtime.
    fn default() -> Self {
        Self {
            add: Duration::from_secs(30),
            delete: Duration::from_secs(5),
            other: Duration::from_secs(5),
        }
    }
}

/// Output and exit code of a call.
#[derive(Debug)]
pub struct Output {
    /// For standard output: a result, an error object, or nothing.
    pub text: String,
    /// For standard error.
    pub stderr: Option<String>,
    /// True if the exit code is 0.
    pub succeeded: bool,
}

/// Carries out one call. On every path, panics included, the output is one that the specification
/// allows.
pub fn call(
    environment: &dyn Fn(&str) -> Option<OsString>,
    input: &mut dyn Read,
    limits: &Limits,
) -> Output {
    let mut version = SpecVersion::NEWEST;
    let outcome = guarded(|| answer(environment, input, limits, &mut version));
    match outcome {
        Ok(output) => output,
        Err(fault) => Output {
            text: fault.to_json(version),
            stderr: Some(format!("{}: {}", fault.message, fault.details)),
            succeeded: false,
        },
    }
}

/// Turns a panic into an error object: a runtime takes missing output for a success.
fn guarded<T>(work: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(Fault::new(
            Code::Bug,
            "internal error in weft-cni",
            panic_message(panic.as_ref()),
        ))
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic without a message")
}

fn answer(
    environment: &dyn Fn(&str) -> Option<OsString>,
    input: &mut dyn Read,
    limits: &Limits,
    version: &mut SpecVersion,
) -> Result<Output, Fault> {
    let begun = Instant::now();
    let invocation = Invocation::read(environment)?;
    let bytes = read(input)?;
    *version = config::version_of(&bytes).unwrap_or(SpecVersion::NEWEST);
    if invocation.command == Command::Version {
        return Ok(success(versions(*version), None));
    }
    let config = NetworkConfig::parse(&bytes, invocation.command)?;
    let verbs = Verbs {
        invocation: &invocation,
        config: &config,
        limits,
    };
    // Caught here as well, so that the log contains it.
    let outcome = guarded(|| match invocation.command {
        Command::Add => verbs.add(),
        Command::Del => verbs.delete(),
        Command::Check => verbs.check(),
        Command::Status => verbs.status(),
        Command::Gc => verbs.clean_up(),
        Command::Version => Ok(Done::default()),
    });
    let logged = log(&invocation, &config, &outcome, begun.elapsed());
    let Done { result, note } = outcome?;
    let text = result.map(|result| json(&result)).unwrap_or_default();
    // A failure to log does not fail the call.
    let unlogged = logged
        .err()
        .map(|error| format!("cannot write the log: {error}"));
    Ok(success(text, unlogged.or(note)))
}

fn success(text: String, stderr: Option<String>) -> Output {
    Output {
        text,
        stderr,
        succeeded: true,
    }
}

fn read(input: &mut dyn Read) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let read = input.take(INPUT_LIMIT + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        Fault::new(
            Code::InputOutput,
            "cannot read the network configuration",
            error,
        )
    })?;
    if bytes.len() as u64 > INPUT_LIMIT {
        return Err(Fault::new(
            Code::Undecodable,
            "cannot read the network configuration",
            format_args!("it is longer than {INPUT_LIMIT} bytes"),
        ));
    }
    Ok(bytes)
}

fn versions(version: SpecVersion) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Versions {
        cni_version: SpecVersion,
        supported_versions: [SpecVersion; SpecVersion::ALL.len()],
    }
    json(&Versions {
        cni_version: version,
        supported_versions: SpecVersion::ALL,
    })
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types are always JSON")
}

fn log(
    invocation: &Invocation,
    config: &NetworkConfig,
    outcome: &Result<Done, Fault>,
    took: Duration,
) -> io::Result<()> {
    let Some(path) = &config.ipam.log else {
        return Ok(());
    };
    let words = match outcome {
        Ok(Done { result, note }) => {
            let addresses = result.iter().flat_map(|Outcome { ips, .. }| ips);
            let mut words: Vec<String> = addresses.map(|ip| ip.address.to_string()).collect();
            words.extend(note.clone());
            format!("done {}", words.join(" "))
        }
        Err(fault) => format!(
            "code {}: {}: {}",
            fault.code as u32, fault.message, fault.details
        ),
    };
    let pod = invocation.pod.as_ref();
    let line = Line {
        command: invocation.command.as_str(),
        network: &config.name,
        container_id: &invocation.container_id,
        ifname: &invocation.ifname,
        pod: pod.map(|pod| format!("{}/{}", pod.pod_namespace, pod.pod_name)),
        outcome: words.trim_end(),
    };
    logfile::append(path, &line, took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_object() {
        let fault = guarded::<()>(|| panic!("index {} is out of bounds", 7)).unwrap_err();
        assert_eq!(
            (fault.code, &*fault.details),
            (Code::Bug, "index 7 is out of bounds")
        );
        let output = call(
            &|_| panic!("the environment is on fire"),
            &mut io::empty(),
            &Limits::default(),
        );
        assert!(!output.succeeded);
        assert_eq!(
            output.text,
            "{\"cniVersion\":\"1.1.0\",\"code\":100,\"msg\":\"internal error in weft-cni\",\
             \"details\":\"the environment is on fire\"}"
        );
    }

    #[test]
    fn an_input_that_never_ends_is_cut_off() {
        let environment = |name: &str| (name == "CNI_COMMAND").then(|| OsString::from("STATUS"));
        let output = call(&environment, &mut io::repeat(b' '), &Limits::default());
        assert!(!output.succeeded);
        assert!(output.text.contains("\"code\":6"), "{}", output.text);
    }
}
