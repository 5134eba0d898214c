//! `weft-lab playground`: the processes that `weft-lab up` starts. Not for people.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use weft_check::Echo;
use weft_playground::{
    churn::Churn,
    demo::Demo,
    page::Page,
    report::{Format, Reporter},
    world::{World, WorldOptions, until_launcher_ends},
};

use weft_program::{SharedArguments, commands::ReportFormat};

use crate::config::LabLayer;

#[derive(Debug, Args)]
pub(crate) struct PlaygroundArguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Be the world: API server, nodes, stand-ins
    World(WorldArguments),
    /// Be what runs in a pod
    Pod(PodArguments),
}

#[derive(Debug, Args)]
struct WorldArguments {
    #[arg(long)]
    nodes: u8,
    #[arg(long)]
    once: bool,
    #[arg(long, value_enum)]
    output: ReportFormat,
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    weft: PathBuf,
    #[arg(long)]
    outage: u64,
    #[arg(long)]
    churn: Option<u64>,
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long)]
    kill: bool,
    #[arg(long)]
    without_weft: bool,
}

#[derive(Debug, Args)]
struct PodArguments {
    #[arg(long)]
    name: String,
    #[arg(long)]
    node: String,
    #[arg(long)]
    port: u16,
}

pub(crate) fn run(arguments: PlaygroundArguments, shared: SharedArguments) -> anyhow::Result<()> {
    match arguments.role {
        Role::World(arguments) => be_world(&arguments, shared),
        Role::Pod(PodArguments { name, node, port }) => {
            let echo = Echo {
                pod: name,
                node,
                port,
            };
            echo.serve().context("cannot serve")
        }
    }
}

impl WorldArguments {
    fn churn(&self) -> Option<Churn> {
        let clock = || SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Some(Churn {
            lasting: Duration::from_secs(self.churn?),
            seed: self
                .seed
                .unwrap_or_else(|| u64::from(clock().subsec_nanos())),
            kill: self.kill,
        })
    }
}

fn be_world(arguments: &WorldArguments, shared: SharedArguments) -> anyhow::Result<()> {
    shared.start_logging::<LabLayer>()?;
    let format = match arguments.output {
        ReportFormat::Text => Format::Text,
        ReportFormat::Json => Format::Json,
    };
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(async {
        let options = WorldOptions {
            directory: arguments.directory.clone(),
            weft: arguments.weft.clone(),
            without_weft: arguments.without_weft,
        };
        let world = Arc::new(World::enter(&options).await?);
        let stop = until_launcher_ends();
        let mut reporter = Reporter::new(format);
        let demo = Demo::new(&world, Duration::from_secs(arguments.outage));
        let shown = async {
            if arguments.without_weft {
                return Ok(demo.stand_ins_alone(arguments.nodes, &mut reporter).await?);
            }
            demo.build(arguments.nodes, &mut reporter).await?;
            if let Some(churn) = arguments.churn() {
                churn.run(&demo, &mut reporter).await?;
            } else if arguments.once {
                demo.show(&mut reporter).await?;
            }
            Ok::<(), anyhow::Error>(())
        };
        let shown = tokio::select! {
            () = stop.cancelled() => Ok(()),
            shown = shown => shown,
        };
        let failed = shown.is_err();
        if !arguments.once && !failed && !stop.is_cancelled() {
            let requests = demo.requests().await?;
            let page = Page::serve(world.clone(), Some(requests));
            let page = page.context("cannot serve the live page")?;
            reporter.say(&hints(&world, &page));
            stop.cancelled().await;
        }
        let summary = (arguments.once || failed).then(|| reporter.finish());
        drop(demo);
        world.stop().await;
        match summary {
            Some(summary) if failed || !summary.ok() => bail!("not everything held"),
            _ => Ok(()),
        }
    })
}

fn hints(world: &World, page: &Page) -> String {
    format!(
        "\nLook at it: {}\n\n\
         It stays until you press Ctrl-C. In another terminal:\n\n    \
         export KUBECONFIG={}\n    \
         kubectl get nodes,pods -o wide\n    \
         kubectl scale deployment web --replicas=12\n    \
         kubectl get nodenetworkconfigs -n kube-system\n    \
         weft check\n",
        page.url,
        world.kubeconfig.display()
    )
}
