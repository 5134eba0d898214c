//! `weft proxy top`: connections of Services and endpoints, live.

use std::{
    collections::BTreeMap, fmt::Write as _, net::SocketAddr, sync::Arc, thread, time::Duration,
};

use anyhow::{Context as _, bail};
use clap::Args;
use weft_model::IpFamily;
use weft_nftables::{Connections, CounterState, HostKernel, Watch, connections};
use weft_program::output;

#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 2)]
    interval: u64,
    /// Number of readings; 0 reads until the command is interrupted
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    rounds: u64,
    /// Maximum number of endpoints to show
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
}

impl TopArguments {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let mut last = read()?;
        output::text(&table(&last, None, self.limit))?;
        let mut round = 1;
        while self.rounds == 0 || round < self.rounds {
            thread::sleep(Duration::from_secs(self.interval));
            let now = read()?;
            let since = Some((&last, self.interval));
            output::text(&table(&now, since, self.limit))?;
            last = now;
            round += 1;
        }
        Ok(())
    }
}

/// The counts of both families.
fn read() -> anyhow::Result<Connections> {
    let mut all = Connections::new();
    let mut is_counted = false;
    let mut has_table = false;
    for family in IpFamily::ALL {
        let mut kernel = HostKernel::new(family, Watch::new());
        match connections(&mut kernel, family).context("cannot read the counters")? {
            CounterState::NoTable => {}
            CounterState::Off => has_table = true,
            CounterState::On(found) => {
                is_counted = true;
                all.extend(found);
            }
        }
    }
    match (is_counted, has_table) {
        (true, _) => Ok(all),
        (false, true) => bail!(
            "cannot show connections: they are not counted; the proxy needs --nftables-counters"
        ),
        (false, false) => {
            bail!("cannot show connections: weft proxy does not run in the nftables mode here")
        }
    }
}

/// One line of the table.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    service: &'a Arc<str>,
    endpoint: &'a SocketAddr,
    total: u64,
    per_second: f64,
}

/// The endpoints with the most connections, under their Services.
fn table(now: &Connections, since: Option<(&Connections, u64)>, limit: usize) -> String {
    let mut services: BTreeMap<&str, (u64, f64)> = BTreeMap::new();
    let mut lines: Vec<Line<'_>> = now
        .iter()
        .map(|((service, endpoint), total)| {
            let per_second = since.map_or(0.0, |(last, seconds)| {
                // An element that was replaced begins at zero again.
                let former = last
                    .get(&(service.clone(), *endpoint))
                    .copied()
                    .unwrap_or(0);
                let new = total.checked_sub(former).unwrap_or(*total);
                #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52")]
                let rate = new as f64 / seconds.max(1) as f64;
                rate
            });
            let sum = services.entry(service).or_default();
            sum.0 += total;
            sum.1 += per_second;
            Line {
                service,
                endpoint,
                total: *total,
                per_second,
            }
        })
        .collect();
    lines.sort_by(|a, b| {
        let by_rate = b.per_second.total_cmp(&a.per_second);
        by_rate.then(b.total.cmp(&a.total))
    });
    let mut text = String::new();
    let mut row = |cells: [&str; 4]| {
        let [service, endpoint, rate, total] = cells;
        let _infallible = writeln!(text, "{service:<48} {endpoint:<28} {rate:>9} {total:>12}");
    };
    row(["SERVICE", "ENDPOINT", "CONN/S", "CONNECTIONS"]);
    let mut shown = std::collections::BTreeSet::new();
    for line in lines.iter().take(limit) {
        if shown.insert(line.service) {
            let (total, rate) = services[&**line.service];
            row([
                line.service,
                "all",
                &format!("{rate:.1}"),
                &total.to_string(),
            ]);
        }
        let rate = format!("{:.1}", line.per_second);
        row([
            line.service,
            &line.endpoint.to_string(),
            &rate,
            &line.total.to_string(),
        ]);
    }
    if lines.len() > limit {
        let _infallible = writeln!(text, "{} more endpoints", lines.len() - limit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_endpoints_come_first_and_a_replaced_element_counts_from_zero() {
        let of = |counts: [u64; 3]| -> Connections {
            let ends = [("shop/a:http", 1), ("shop/a:http", 2), ("shop/b:", 1)];
            let keys = ends.map(|(name, n)| (name.into(), SocketAddr::from(([10, 0, 0, n], 80))));
            keys.into_iter().zip(counts).collect()
        };
        let (before, after) = (of([100, 50, 7]), of([102, 10, 7]));
        let text = table(&after, Some((&before, 2)), 2);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|l| l.split_whitespace().collect())
            .collect();
        assert_eq!(
            rows,
            [
                vec!["SERVICE", "ENDPOINT", "CONN/S", "CONNECTIONS"],
                vec!["shop/a:http", "all", "6.0", "112"],
                vec!["shop/a:http", "10.0.0.2:80", "5.0", "10"],
                vec!["shop/a:http", "10.0.0.1:80", "1.0", "102"],
                vec!["1", "more", "endpoints"],
            ]
        );
    }
}
