//! Automation behind the Makefile.
#![expect(clippy::print_stdout, reason = "a program for people at a terminal")]

use std::{env, process::ExitCode};

use anyhow::bail;

mod authority;
mod bench;
mod checks;
mod clean;
mod cluster;
mod conformance;
mod debian;
mod deny;
mod images;
mod kubernetes;
mod oci;
mod peers;
mod process;
mod request;
mod setup;
mod suites;
mod up;
mod workspace;

use request::Request;

const HELP: &str = "\
Usage: cargo xtask <TASK>

  up                          build weft and start what there is of it, until Ctrl-C
  setup                       install the Debian packages that tests need, or say how
  test                        setup, format, clippy, documentation, tests, quick benchmarks
  lint                        format and clippy only
  deny                        licences, sources and bans of dependencies; advisories where
                              WEFT_ADVISORY_DB names a database
  endurance                   the end-to-end runs that take minutes
  bench                       run the benchmarks (PART=<crate>, QUICK=1) and print the table
  conformance                 tests and comparisons with the real kube-apiserver, kube-proxy and
                              others (PART=<name>, QUICK=1), and a report of them
  peers                       build the pinned Kubernetes and etcd into a cache directory
  peers cluster               build the other programs of a whole cluster too
  images                      write the images of Weft as OCI archives
  cluster                     a real Kubernetes cluster on this machine (flags in ARGS; --help)
  kubernetes up|down|status   a real kube-apiserver with etcd on loopback
  clean                       stop what was started and remove what was built";

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(if error.is::<setup::Missing>() {
                setup::EXIT_CODE
            } else {
                1
            })
        }
    }
}

fn run(arguments: &[&str]) -> anyhow::Result<()> {
    if let Some(result) = cluster::become_part(arguments) {
        return result;
    }
    match arguments {
        ["up"] => up::run(),
        ["setup"] => setup::run(),
        ["test"] => checks::test(),
        ["lint"] => checks::lint(),
        ["deny"] => deny::run(),
        ["endurance"] => checks::endurance(),
        ["bench"] => bench::run(&Request::from_environment()),
        ["conformance"] => conformance::run(&Request::from_environment()),
        ["peers"] => peers::build(),
        ["peers", "cluster"] => peers::build_cluster(),
        ["cluster"] => cluster::run(),
        ["images"] => images::run(),
        ["kubernetes", "up"] => kubernetes::up(),
        ["kubernetes", "down"] => kubernetes::down(),
        ["kubernetes", "status"] => kubernetes::status(),
        ["clean"] => clean::run(),
        [] | ["help" | "--help" | "-h"] => {
            println!("{HELP}");
            Ok(())
        }
        other => bail!("unknown task `{}`\n\n{HELP}", other.join(" ")),
    }
}
