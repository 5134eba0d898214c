use std::collections::BTreeSet;

use weft_model::SharedStr;
use weft_routes::{ProviderError, RateLimit};

use super::{
    api::{Api, Purpose},
    network::NetworkId,
    wire,
};
use crate::{Answer, InstanceAddresses};

/// Up to so many servers are asked for one by one; for more, pages with all servers of the project
/// are cheaper.
const FEW: usize = 5;

const PER_PAGE: u32 = 50;

/// The addresses in the network that these servers have.
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
    let read = if instances.len() <= FEW {
        one_by_one(api, instances, &mut rate).await
    } else {
        all(api, &mut rate).await
    };
    let asked: BTreeSet<&str> = instances.iter().map(SharedStr::as_str).collect();
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
    // What is no number is no server, and must not become part of a path.
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

async fn all(api: &Api, rate: &mut Option<RateLimit>) -> Result<Vec<wire::Server>, ProviderError> {
    let mut servers = Vec::new();
    let mut page = 1;
    loop {
        let path = format!("servers?page={page}&per_page={PER_PAGE}");
        let answer = api
            .read::<wire::ServersReply>(Purpose::Instances, &path)
            .await;
        *rate = answer.rate.or(*rate);
        let reply = answer.result?;
        servers.extend(reply.servers);
        match reply.meta.pagination.next_page {
            Some(next) if next > page => page = next,
            _ => return Ok(servers),
        }
    }
}
