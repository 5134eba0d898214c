//! The newest CNI version that the installed plugins and the container runtime know.

use std::{
    io::{self, Read as _, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde::Deserialize;
use weft_cni::SpecVersion;

/// The version for plugins and runtimes about which nothing newer is known.
const USUAL: SpecVersion = SpecVersion::V1_0_0;
/// Time for a plugin to answer VERSION; the project's plugins need a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// The newest version that all of these programs and the runtime support, 1.0.0 at least.
///
/// 1.1.0 brings STATUS, by which a node is not Ready while no address can be assigned. Runtimes
/// refuse results of versions that their library does not know, so the runtime has to be one that is
/// known to support it.
pub(super) fn choose<'a>(
    directory: &Path,
    plugins: impl Iterator<Item = &'a str>,
    runtime: &str,
) -> SpecVersion {
    if !runtime_knows_status(runtime) {
        return USUAL;
    }
    let mut newest = SpecVersion::NEWEST;
    for plugin in plugins {
        let supported = match ask(&directory.join(plugin)) {
            Ok(supported) => supported,
            Err(error) => {
                tracing::debug!(plugin, %error, "cannot ask a CNI plugin for its versions");
                return USUAL;
            }
        };
        let known = SpecVersion::ALL.into_iter().rev().find(|version| {
            let mut texts = supported.iter();
            texts.any(|text| text == version.as_str())
        });
        newest = newest.min(known.unwrap_or(USUAL));
    }
    newest.max(USUAL)
}

/// True for runtimes whose CNI library knows 1.1.0: containerd since 2.0, CRI-O since 1.31.
/// `runtime` is `status.nodeInfo.containerRuntimeVersion` of the Node.
fn runtime_knows_status(runtime: &str) -> bool {
    let Some((name, version)) = runtime.split_once("://") else {
        return false;
    };
    let mut numbers = version
        .trim_start_matches('v')
        .split('.')
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match name {
        "containerd" => version >= (2, 0),
        "cri-o" => version >= (1, 31),
        _ => false,
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    supported_versions: Vec<String>,
}

/// The answer of a plugin to VERSION.
fn ask(plugin: &Path) -> io::Result<Vec<String>> {
    let mut child = Command::new(plugin)
        .env_clear()
        .env("CNI_COMMAND", "VERSION")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let answered = converse(&mut child);
    // It has ended, or did not answer in time.
    let _ = child.kill();
    let _ = child.wait();
    let versions: Versions = serde_json::from_slice(&answered?).map_err(io::Error::other)?;
    Ok(versions.supported_versions)
}

fn converse(child: &mut Child) -> io::Result<Vec<u8>> {
    /// Many times what a list of versions needs.
    const LIMIT: u64 = 64 << 10;
    let begun = Instant::now();
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin need not read it.
        let _ = stdin.write_all(b"{\"cniVersion\": \"1.0.0\"}");
    }
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(Duration::from_millis(5));
    };
    if !status.success() {
        return Err(io::Error::other(format!("it failed: {status}")));
    }
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(LIMIT).read_to_end(&mut answer)?;
    }
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runtimes_that_are_known_to_know_status_get_it() {
        for (runtime, knows) in [
            ("containerd://2.0.0", true),
            ("containerd://2.3.7", true),
            ("containerd://v2.1.0-rc.1", true),
            ("containerd://1.7.27", false),
            ("cri-o://1.31.0", true),
            ("cri-o://1.30.9", false),
            ("docker://27.3", false),
            ("containerd://", false),
            ("containerd", false),
            ("", false),
        ] {
            assert_eq!(runtime_knows_status(runtime), knows, "{runtime}");
        }
    }
}
