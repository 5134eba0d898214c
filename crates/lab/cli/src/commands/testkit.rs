//! `weft-lab testkit`: doubles of cloud APIs, to run controllers against.

use std::{fs, path::Path, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::de::DeserializeOwned;
use weft_testkit::clouds::{
    Ec2Double, Ec2Instance, Ec2Options, Ec2Table, HcloudDouble, HcloudLatency, HcloudOptions,
    HcloudServer, Throttle,
};

use weft_program::{SharedArguments, output, signals};

use crate::config::LabLayer;

const AFTER_HELP: &str = "\
These are test doubles: they listen on loopback, keep everything in memory and cost nothing. They
answer as the real APIs do as far as route controllers use them, so that controllers can be measured
and compared. Each counts calls and lets them fail on demand:
  GET    /_double/counters  calls by endpoint and result
  GET    /_double/table     the routes that are there
  POST   /_double/faults    let calls go wrong; kinds are fail, action_fails, drop_before,
                            drop_after, garbage and slow (with milliseconds):
    {\"endpoint\": \"add_route\", \"times\": 2, \"kind\": \"fail\", \"code\": \"locked\"}
  DELETE /_double/faults    nothing fails any more
  PUT    /_double/machines  replace the servers or instances
  POST   /_double/reset     no routes, no faults, all counters at zero";

#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct TestkitArguments {
    #[command(subcommand)]
    double: Double,
}

#[derive(Debug, Subcommand)]
enum Double {
    /// Answer as the Hetzner Cloud API does: one network, its routes, and servers
    Hcloud(HcloudArguments),
    /// Answer as EC2's query API does: route tables and instances
    Ec2(Ec2Arguments),
}

#[derive(Debug, Args)]
struct HcloudArguments {
    /// Port on loopback; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Latency of reads, changes and actions, in milliseconds
    #[arg(long, value_name = "READ,CHANGE,ACTION", default_value = "80,150,1000", value_parser = latency)]
    latency: HcloudLatency,
    /// Allow so many calls an hour, refilled continuously; 0 for no limit
    #[arg(long, value_name = "CALLS", default_value_t = 3600)]
    calls_per_hour: u32,
    /// Let so many routes fit into the network
    #[arg(long, value_name = "ROUTES", default_value_t = 100)]
    quota: usize,
    /// Name of the network
    #[arg(long, value_name = "NAME", default_value = "weft")]
    network: String,
    /// Accepted token [default: any]
    #[arg(long)]
    token: Option<String>,
    /// Read servers from this file: [{"id": 1, "name": "node-1", "ip": "10.0.0.2"}]
    #[arg(long, value_name = "FILE")]
    servers: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Ec2Arguments {
    /// Port on loopback; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Latency of a call, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 80)]
    latency: u64,
    /// Lag of reads behind writes, in milliseconds
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 0)]
    lag: u64,
    /// Disable the rate limit
    #[arg(long)]
    no_throttle: bool,
    /// Capacity of the table in routes
    #[arg(long, value_name = "ROUTES", default_value_t = 50)]
    quota: usize,
    /// Cluster name in the tags of the tables
    #[arg(long, value_name = "NAME", default_value = "weft")]
    cluster: String,
    /// ID of a route table; may be given several times
    #[arg(long = "table", value_name = "ID", default_value = "rtb-1")]
    tables: Vec<String>,
    /// Read instances from this file: [{"id": "i-1", "ip": "10.0.0.2"}]
    #[arg(long, value_name = "FILE")]
    instances: Option<PathBuf>,
}

pub(crate) fn run(arguments: TestkitArguments, shared: SharedArguments) -> anyhow::Result<()> {
    let log = shared.start_logging::<LabLayer>()?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(async {
        let shutdown = signals::listen(log)?;
        match arguments.double {
            Double::Hcloud(arguments) => {
                let network = arguments.network.clone();
                let double = HcloudDouble::start(arguments.options()?).await;
                let double = double.context("cannot start the double of Hetzner Cloud")?;
                output::text(&hcloud_line(&double.endpoint(), &network))?;
                shutdown.cancelled().await;
            }
            Double::Ec2(arguments) => {
                let cluster = arguments.cluster.clone();
                let double = Ec2Double::start(arguments.options()?).await;
                let double = double.context("cannot start the double of EC2")?;
                output::text(&ec2_line(&double.endpoint(), &cluster))?;
                shutdown.cancelled().await;
            }
        }
        Ok(())
    })
}

fn hcloud_line(endpoint: &str, network: &str) -> String {
    format!(
        "{endpoint} doubles Hetzner Cloud; run a controller with HCLOUD_ENDPOINT={endpoint} \
         HCLOUD_TOKEN=any HCLOUD_NETWORK={network}\n"
    )
}

fn ec2_line(endpoint: &str, cluster: &str) -> String {
    format!(
        "{endpoint} doubles EC2; run a controller with AWS_ENDPOINT_URL_EC2={endpoint} \
         AWS_REGION=eu-central-1 AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any and \
         KubernetesClusterID = {cluster} in [Global] of its cloud configuration\n"
    )
}

impl HcloudArguments {
    fn options(self) -> anyhow::Result<HcloudOptions> {
        Ok(HcloudOptions {
            port: self.port,
            token: self.token,
            network_name: self.network,
            servers: machines::<HcloudServer>(self.servers.as_deref())?,
            latency: self.latency,
            calls_per_hour: Some(self.calls_per_hour).filter(|calls| *calls > 0),
            quota: self.quota,
            ..HcloudOptions::default()
        })
    }
}

impl Ec2Arguments {
    fn options(self) -> anyhow::Result<Ec2Options> {
        let table = |id: &String| Ec2Table::tagged(id, &self.cluster);
        Ok(Ec2Options {
            port: self.port,
            tables: self.tables.iter().map(table).collect(),
            instances: machines::<Ec2Instance>(self.instances.as_deref())?,
            quota: self.quota,
            latency: Duration::from_millis(self.latency),
            lag: Duration::from_millis(self.lag),
            throttle: (!self.no_throttle).then_some(Throttle::REAL),
            ..Ec2Options::default()
        })
    }
}

fn machines<T: DeserializeOwned>(file: Option<&Path>) -> anyhow::Result<Vec<T>> {
    let Some(file) = file else {
        return Ok(Vec::new());
    };
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot decode {}", file.display()))
}

fn latency(text: &str) -> anyhow::Result<HcloudLatency> {
    let parse = |part: &str| part.trim().parse().map(Duration::from_millis);
    let parts: Vec<Duration> = text.split(',').map(parse).collect::<Result<_, _>>()?;
    let [list, mutation, action] = parts[..] else {
        bail!("three numbers are needed, for reads, changes and actions");
    };
    Ok(HcloudLatency {
        list,
        mutation,
        action,
    })
}
