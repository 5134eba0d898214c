//! The tests against real programs, and the comparisons with them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, bail, ensure};

use crate::{
    cluster, kubernetes, peers,
    process::{self, Progress, cargo},
    request::Request,
    setup,
    suites::{self, Suite},
    workspace,
};

/// A part that can be run alone.
struct Part {
    name: &'static str,
    when: When,
    needs: Needs,
    run: fn(&Stage) -> anyhow::Result<()>,
}

/// The runs without `PART` that have a part.
#[derive(Clone, Copy, PartialEq)]
enum When {
    Always,
    /// Without `QUICK`.
    Full,
    /// With `QUICK`, which is what CI runs.
    Quick,
}

/// Builds that a part depends on.
#[derive(Clone, Copy, PartialEq)]
enum Needs {
    /// The integration tests.
    Tests,
    /// The programs as users run them.
    Programs,
    /// The parts of a cluster, which [`cluster::prepare`] builds.
    Cluster,
}

const fn part(
    name: &'static str,
    when: When,
    needs: Needs,
    run: fn(&Stage) -> anyhow::Result<()>,
) -> Part {
    Part {
        name,
        when,
        needs,
        run,
    }
}

/// In the order in which they run: what finds mistakes before what measures.
const PARTS: [Part; 16] = [
    part(
        "server",
        When::Always,
        Needs::Tests,
        Stage::tests_on_the_real_server,
    ),
    part("fuzz", When::Always, Needs::Tests, Stage::beside_kube_proxy),
    part("page", When::Always, Needs::Tests, Stage::page),
    part("moto", When::Always, Needs::Tests, Stage::moto),
    part(
        "cluster-slice",
        When::Quick,
        Needs::Cluster,
        Stage::cluster_slice,
    ),
    part("cluster-conformance", When::Full, Needs::Cluster, |stage| {
        cluster::prepare(CLUSTER_PROFILE)?.conformance(&stage.output)
    }),
    part("cluster-network", When::Full, Needs::Cluster, |stage| {
        cluster::prepare(CLUSTER_PROFILE)?.network(&stage.output)
    }),
    part("cluster-faults", When::Full, Needs::Cluster, |stage| {
        cluster::prepare(CLUSTER_PROFILE)?.faults(&stage.output)
    }),
    part("cluster-update", When::Full, Needs::Cluster, |stage| {
        cluster::prepare(CLUSTER_PROFILE)?.update(CLUSTER_PROFILE, &stage.output)
    }),
    part("cluster-alerts", When::Full, Needs::Cluster, |stage| {
        cluster::prepare(CLUSTER_PROFILE)?.alerts(&stage.output)
    }),
    part("cluster-kinds", When::Full, Needs::Cluster, |_| {
        cluster::prepare(CLUSTER_PROFILE)?.kinds()
    }),
    part("cluster-pods", When::Full, Needs::Cluster, |stage| {
        cluster::prepare(CLUSTER_PROFILE)?.pods(&stage.output)
    }),
    part("runtime", When::Full, Needs::Programs, |stage| {
        stage.comparison("runtime")
    }),
    part("routes", When::Full, Needs::Programs, Stage::routes),
    part("proxy", When::Full, Needs::Programs, |stage| {
        stage.comparison("proxy")
    }),
    part("report", When::Full, Needs::Programs, Stage::report),
];

/// The cargo profile of Weft in clusters of a full run.
const CLUSTER_PROFILE: &str = "playground";

impl Part {
    /// `PART=cluster` is every part of that group that a run has.
    fn is_chosen(&self, request: &Request) -> bool {
        let in_run = match self.when {
            When::Always => true,
            When::Full => !request.quick,
            When::Quick => request.quick,
        };
        match &request.part {
            None => in_run,
            Some(name) if name == self.name => true,
            Some(group) => {
                let rest = self.name.strip_prefix(group.as_str());
                in_run && rest.is_some_and(|rest| rest.starts_with('-'))
            }
        }
    }
}

/// Random clusters of a full run.
const SEEDS: u32 = 200;

/// Runs what was asked for. A part that fails stops none of the others.
pub(crate) fn run(request: &Request) -> anyhow::Result<()> {
    let chosen: Vec<&Part> = PARTS
        .iter()
        .filter(|part| part.is_chosen(request))
        .collect();
    if chosen.is_empty() {
        let known: Vec<&str> = PARTS.iter().map(|part| part.name).collect();
        bail!("no such part; there are: {}", known.join(", "));
    }
    ensure!(
        rustix::process::geteuid().is_root() || chosen.iter().all(|part| part.when != When::Full),
        "the comparisons change the kernel of this machine: run them as root"
    );
    let mut progress = Progress::of(chosen.len() + 2);
    progress.step("set-up", || {
        setup::run()?;
        if chosen.iter().all(|part| part.needs == Needs::Cluster) {
            return Ok(());
        }
        setup::browser()?;
        peers::build()
    })?;
    let mut stage = None;
    progress.step("build", || {
        stage = Some(Stage::build(request, &chosen)?);
        Ok(())
    })?;
    let stage = stage.context("the build ended without a result")?;
    let mut failed = Vec::new();
    for part in chosen {
        if let Err(error) = progress.step(part.name, || (part.run)(&stage)) {
            eprintln!("{error:#}");
            failed.push(part.name);
        }
    }
    if !failed.is_empty() {
        bail!("these parts failed: {}", failed.join(", "));
    }
    progress.finish("everything agreed");
    Ok(())
}

/// The programs and tests that the parts run.
struct Stage {
    quick: bool,
    ccm: Option<PathBuf>,
    suites: Vec<Suite>,
    output: PathBuf,
}

impl Stage {
    /// Builds the tests, and for comparisons the programs as users run them.
    fn build(request: &Request, parts: &[&Part]) -> anyhow::Result<Self> {
        if let Some(ccm) = &request.ccm {
            // Better now than after an hour.
            ensure!(ccm.is_file(), "CCM={}: no such program", ccm.display());
        }
        let output = workspace::target().join("conformance");
        fs::create_dir_all(&output).context("create target/conformance")?;
        let needed = |needs| parts.iter().any(|part| part.needs == needs);
        if needed(Needs::Programs) {
            // The program that is measured is built as for images.
            for (profile, program) in [("dist", "weft"), ("release", "weft-conformance")] {
                let mut build = cargo();
                build.args(["build", "--profile", profile, "--workspace", "--locked"]);
                process::run(build.args(["--bin", program]))?;
            }
        }
        Ok(Self {
            quick: request.quick,
            ccm: request.ccm.clone(),
            suites: if needed(Needs::Tests) {
                suites::build()?
            } else {
                Vec::new()
            },
            output,
        })
    }

    /// The tests are the same as in `make test`; `WEFT_TEST_KUBECONFIG` tells those that can to
    /// use the real server in place of the embedded one.
    fn tests_on_the_real_server(&self) -> anyhow::Result<()> {
        on_the_real_server(|kubeconfig| {
            for (package, names) in [
                ("weft-runtime", &[][..]),
                ("weft-apiserver", &[]),
                ("weft", &["routes::", "deploy::"]),
            ] {
                let mut tests = self.tests(package, names)?;
                process::run(tests.env("WEFT_TEST_KUBECONFIG", kubeconfig))?;
            }
            Ok(())
        })?;
        // Older servers list in pages, and so does ours then.
        kubernetes::without_streaming_lists(|kubeconfig| {
            let mut tests = self.tests("weft-runtime", &[])?;
            process::run(tests.env("WEFT_TEST_KUBECONFIG", kubeconfig))
        })
    }

    /// Everything about both proxies, with random clusters of the seeds from 1 on; a full run takes
    /// hundreds. A few at a time, so that no test reaches its time limit while a failing cluster is
    /// made smaller.
    fn beside_kube_proxy(&self) -> anyhow::Result<()> {
        self.clusters("beside_kube_proxy::", 1, 20)?;
        if self.quick {
            return Ok(());
        }
        for first in (21..=SEEDS).step_by(20) {
            let last = (first + 19).min(SEEDS);
            eprintln!("seeds {first} to {last} of {SEEDS}");
            for by in ["random_clusters", "packets::random_clusters"] {
                self.clusters(&format!("beside_kube_proxy::{by}"), first, last)?;
            }
        }
        Ok(())
    }

    fn clusters(&self, name: &str, first: u32, last: u32) -> anyhow::Result<()> {
        let mut tests = self.tests("weft", &[name])?;
        tests.arg("--nocapture");
        process::run(tests.env("WEFT_PROXY_SEEDS", format!("{first}-{last}")))
    }

    /// A real cluster, as far as CI has time; its programs take too long to be built there.
    fn cluster_slice(&self) -> anyhow::Result<()> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: a cluster takes root");
            return Ok(());
        }
        if !peers::has_cluster() {
            eprintln!(
                "not run: the programs of a whole cluster are not built; `cargo xtask peers cluster` builds them"
            );
            return Ok(());
        }
        cluster::prepare("dev")?.slice(&self.output)
    }

    /// Looks at the live page in Chromium.
    fn page(&self) -> anyhow::Result<()> {
        process::run(&mut self.tests("weft-dashboard", &["browser::"])?)
    }

    /// Runs the aws provider against moto's server.
    fn moto(&self) -> anyhow::Result<()> {
        let moto = peers::Moto::start()?;
        let mut tests = self.tests("weft-providers", &["moto"])?;
        process::run(tests.env("WEFT_MOTO_URL", moto.url()))
    }

    /// Runs `weft` and a peer side by side and leaves what was found for the report.
    fn comparison(&self, part: &str) -> anyhow::Result<()> {
        on_the_real_server(|kubeconfig| {
            let mut program = self.program(part)?;
            process::run(program.arg("--kubeconfig").arg(kubeconfig))
        })
    }

    /// Each of its arms has an API server of its own.
    fn routes(&self) -> anyhow::Result<()> {
        let mut program = self.program("routes")?;
        if let Some(ccm) = &self.ccm {
            program.arg("--ccm").arg(ccm);
        }
        process::run(&mut program)
    }

    fn program(&self, part: &str) -> anyhow::Result<Command> {
        workspace::remove_result(&self.output.join(format!("{part}.json")))?;
        let mut program = Command::new(release("weft-conformance"));
        let weft = workspace::target().join("dist/weft");
        program.arg(part).arg("--weft").arg(weft);
        program.arg("--peers").arg(peers::directory()?.join("bin"));
        program.arg("--output").arg(&self.output);
        if self.quick {
            program.arg("--quick");
        }
        Ok(program)
    }

    fn report(&self) -> anyhow::Result<()> {
        let mut program = Command::new(release("weft-conformance"));
        process::run(program.arg("report").arg(&self.output))?;
        eprintln!("see {}", self.output.join("report.html").display());
        Ok(())
    }

    /// Integration tests of these names, which must not pass over a peer or a kernel.
    fn tests(&self, package: &str, names: &[&str]) -> anyhow::Result<Command> {
        let suite = suites::integration(&self.suites, package)?;
        for name in names {
            // A test program that is asked for a name it does not know does nothing and is content.
            ensure!(suite.has(name)?, "{package} has no test {name}");
        }
        let mut command = suite.command();
        command.args(names).env("CI", "true");
        command.env("WEFT_MUST_RUN_PEERS", "1");
        Ok(command)
    }
}

fn release(program: &str) -> PathBuf {
    workspace::target().join("release").join(program)
}

/// With a kube-apiserver that is stopped afterwards unless it ran before.
fn on_the_real_server(work: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let was_running = kubernetes::is_running();
    let kubeconfig = kubernetes::ensure()?;
    let outcome = work(&kubeconfig);
    if !was_running {
        kubernetes::down()?;
    }
    outcome
}
