//! Comparison of the runtime with controller-runtime on a real API server.
//!
//! Both are processes that cache the same Pods of the same server and answer the same requests
//! ([`protocol`]). Memory, processor time and open watches are measured from outside.

use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::{
    arguments::Common,
    outcome::{Outcome, Target},
    version,
};

mod cycles;
mod exposition;
mod initial_sync;
mod load;
mod pods;
pub(crate) mod protocol;
mod server;
mod subject;
mod updates;

use load::Load;
use server::Server;
use subject::Arm;

/// Arguments of the runtime comparison.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Of weft only the version is used: the runtime is part of this program.
    #[command(flatten)]
    common: Common,
    /// Administrator's kubeconfig of a real kube-apiserver.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Number of Pods to cache.
    #[arg(long)]
    pods: Option<usize>,
}

/// controller-runtime configured as its documentation recommends to save memory.
const THEIRS: &str = "controller-runtime";
/// controller-runtime with a transformation that keeps the same fields as weft's projection.
const THEIRS_SLIM: &str = "controller-runtime, same fields";
/// Weft's runtime with a projection.
const OURS: &str = "weft";
/// Weft's runtime with whole Pods of k8s-openapi, without managedFields, as in its peer.
const OURS_WHOLE: &str = "weft, whole Pods";

/// Size of the load.
#[derive(Debug, Clone, Copy)]
struct Extent {
    pods: usize,
    changes: usize,
    cycles: u32,
    rounds: usize,
}

impl Extent {
    const FULL: Self = Self {
        pods: 50_000,
        changes: 20_000,
        cycles: 1000,
        rounds: 3,
    };
    const QUICK: Self = Self {
        pods: 500,
        changes: 500,
        cycles: 20,
        rounds: 1,
    };

    fn of(arguments: &Arguments) -> Self {
        let extent = if arguments.common.quick {
            Self::QUICK
        } else {
            Self::FULL
        };
        match arguments.pods {
            None => extent,
            Some(pods) => Self {
                pods,
                changes: extent.changes.min(pods),
                ..extent
            },
        }
    }

    fn size(self) -> Option<u32> {
        u32::try_from(self.pods).ok()
    }
}

/// State that all measurements share.
struct Stage<'a> {
    arguments: &'a Arguments,
    extent: Extent,
    server: Server,
    load: Load,
    arms: [Arm; 4],
}

/// Runs the comparison and writes its outcome.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let extent = Extent::of(arguments);
        let server = Server::connect(&arguments.kubeconfig).await?;
        let stage = Stage {
            arguments,
            extent,
            load: Load::new(&server, extent.pods),
            server,
            arms: arms(arguments)?,
        };
        let mut outcome = begin(&stage).await?;
        stage.load.create().await?;
        let compared = compare(&stage, &mut outcome).await;
        if compared.is_ok() {
            claim(&mut outcome, extent);
            outcome.write(&arguments.common.output)?;
        }
        eprintln!("[runtime] deleting created objects");
        if let Err(error) = stage.load.delete().await {
            // The figures are valid, and `make conformance` discards the server.
            eprintln!("[runtime] cannot delete created objects: {error:#}");
        }
        compared
    })
}

async fn compare(stage: &Stage<'_>, outcome: &mut Outcome) -> anyhow::Result<()> {
    let subjects = initial_sync::measure(stage, outcome).await?;
    updates::measure(stage, outcome, subjects).await?;
    cycles::measure(stage, outcome).await
}

fn arms(arguments: &Arguments) -> anyhow::Result<[Arm; 4]> {
    let theirs = arguments.common.peers.join("cache");
    ensure!(
        theirs.is_file(),
        "cannot find {}: run `make peers`",
        theirs.display()
    );
    let ours = std::env::current_exe().context("cannot find the path of this program")?;
    let arm = |name, program: &PathBuf, arguments| Arm {
        name,
        program: program.clone(),
        arguments,
    };
    Ok([
        arm(THEIRS, &theirs, &[]),
        arm(OURS, &ours, &["cache-subject"]),
        arm(THEIRS_SLIM, &theirs, &["fields"]),
        arm(OURS_WHOLE, &ours, &["cache-subject", "--full"]),
    ])
}

async fn begin(stage: &Stage<'_>) -> anyhow::Result<Outcome> {
    let names = [THEIRS, THEIRS_SLIM, OURS, OURS_WHOLE];
    let title = "Runtime compared with controller-runtime";
    let mut outcome = Outcome::new("runtime", title, &names);
    METHOD.clone_into(&mut outcome.method);
    outcome.notes = NOTES.map(str::to_owned).to_vec();
    outcome.versions.push(stage.server.version().await?);
    let theirs = version::output(&stage.arms[0].program, "versions")?;
    outcome.versions.extend(theirs.lines().map(str::to_owned));
    let ours = version::of_weft(&stage.arguments.common.weft)?;
    outcome.versions.push(ours);
    Ok(outcome)
}

const METHOD: &str = "\
Four processes cache the same Pods of one real kube-apiserver. In each round they run one after the \
other, each started new and alone; figures are medians of the rounds. A Pod is created with about 3 kB \
and its kubelet's report, to which the server adds defaults and managedFields. Time to sync is from the \
request until a consumer has received every Pod. Live heap is what the cache added: for Go HeapAlloc after \
two forced collections, for weft the bytes allocated and not freed. RssAnon and processor time are read \
from the kernel, from outside; RssAnon is read after the cache has synced and before a collection is \
forced. Open watches are counted by the server. For the updates all four watch at the same time while 16 \
writers patch the status of Pods, each Pod once. The cycles run in separate processes that cache nothing \
else: first ten cycles, then the rest; after each part the measurement waits until the server counts no \
more of their watches.";

const NOTES: [&str; 4] = [
    "controller-runtime strips managedFields by its own TransformStripManagedFields, and speaks protobuf; \
     weft speaks JSON.",
    "\"same fields\" adds a transformation written by hand that keeps of a Pod what weft's projection \
     keeps: identity, labels, owners, node, host network, phase, addresses. It decodes the whole Pod first.",
    "\"whole Pods\" is weft's cache with the types of k8s-openapi, which are wide, and without \
     managedFields (its own WithoutManagedFields): a whole Pod takes more memory than in Go.",
    "A controller of controller-runtime never removes its event handler (its issue 2983), so each start \
     and stop on a shared informer leaves one handler.",
];

/// Targets: a quarter of the peer's heap and memory, as for the proxy that uses this cache; with the
/// same fields, and in processor time, no more than the peer.
fn claim(outcome: &mut Outcome, extent: Extent) {
    let size = extent.size();
    for (name, least) in [
        (initial_sync::HEAP, 4.0),
        (initial_sync::MEMORY, 4.0),
        (initial_sync::CPU, 1.0),
        (updates::CPU, 1.0),
    ] {
        outcome.claim(name, size, [THEIRS, OURS], Some(Target::AtLeast(least)));
        outcome.claim(name, size, [THEIRS_SLIM, OURS], Some(Target::AtLeast(1.0)));
    }
    outcome.claim(initial_sync::SECONDS, size, [THEIRS, OURS], None);
    outcome.claim(initial_sync::SERVER, size, [THEIRS, OURS], None);
    outcome.claim(initial_sync::HEAP, size, [THEIRS, OURS_WHOLE], None);
    outcome.claim(initial_sync::MEMORY, size, [THEIRS, OURS_WHOLE], None);
    cycles::claim(outcome, extent);
}
