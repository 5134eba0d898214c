//! Addresses of Hetzner servers.

use std::collections::BTreeSet;

use weft_model::SharedStr;
use weft_routes::{ProviderError, RateLimit};

use super::{
    api::{Api, Purpose},
    network::NetworkId,
    rate::{calls_after, is_low},
    wire,
};
use crate::{Answer, InstanceAddresses, pages::Pages};

/// Number of servers up to which they are read one by one; for more, pages with all servers of the
/// project are cheaper.
const FEW: usize = 5;

const PER_PAGE: u32 = 50;

/// The addresses of these servers in the network.
pub(super) async fn addresses(
    api: &Api,
    network: &NetworkId,
    instances: &[SharedStr],
) -> Answer<InstanceAddresses> {
    let number = match network.number(api).await {
        Ok(number) => number,
        Err(answer) => return answer,
    };
    let mut rate = None;
    let asked: BTreeSet<&str> = instances.iter().map(SharedStr::as_str).collect();
    let read = if instances.len() <= FEW {
        one_by_one(api, instances, &mut rate).await
    } else {
        all(api, &asked, &mut rate).await
    };
    let result = read.map(|servers| {
        let named = servers.iter().map(|server| (server.id.to_string(), server));
        let wanted = named.filter(|(id, _)| asked.contains(id.as_str()));
        let found = wanted.map(|(id, server)| {
            let own = server.private_net.iter();
            let own = own.filter(|private| private.network == number);
            let addresses = own
                .filter_map(|private| private.ip.as_deref()?.parse().ok())
                .collect();
            (SharedStr::new(&id), addresses)
        });
        found.collect()
    });
    Answer { result, rate }
}

async fn one_by_one(
    api: &Api,
    instances: &[SharedStr],
    rate: &mut Option<RateLimit>,
) -> Result<Vec<wire::Server>, ProviderError> {
    let mut servers = Vec::new();
    // Anything but a number is not a server, and must not become part of a path.
    for id in instances.iter().filter_map(|id| id.parse::<u64>().ok()) {
        let path = format!("servers/{id}");
        let answer = api
            .read::<wire::ServerReply>(Purpose::Instances, &path)
            .await;
        *rate = answer.rate.or(*rate);
        match answer.result {
            Ok(reply) => servers.push(reply.server),
            Err(ProviderError::Gone) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(servers)
}

async fn all(
    api: &Api,
    asked: &BTreeSet<&str>,
    rate: &mut Option<RateLimit>,
) -> Result<Vec<wire::Server>, ProviderError> {
    let mut servers = Vec::new();
    let mut pages = Pages::default();
    let mut page: u64 = 1;
    loop {
        let path = format!("servers?page={page}&per_page={PER_PAGE}");
        let answer = api
            .read::<wire::ServersReply>(Purpose::Instances, &path)
            .await;
        *rate = answer.rate.or(*rate);
        let reply = answer.result?;
        let entries = reply.servers.iter().map(wire::Server::entries).sum();
        let wanted = |server: &wire::Server| asked.contains(server.id.to_string().as_str());
        servers.extend(reply.servers.into_iter().filter(wanted));
        let next = reply.meta.pagination.next_page;
        let turned = pages.turn(entries, next.as_ref().map(u64::to_string))?;
        if turned.is_none() {
            return Ok(servers);
        }
        // A skipped page would hide servers, and an earlier one would never end.
        page += 1;
        if next != Some(page) {
            let text = format!("next_page is {next:?}: expected {page}");
            return Err(ProviderError::Garbage(text.as_str().into()));
        }
        if let Some(rate) = answer.rate.filter(|rate| is_low(*rate)) {
            let after = Some(calls_after(rate, pages.read()));
            return Err(ProviderError::RateLimited { after });
        }
    }
}
