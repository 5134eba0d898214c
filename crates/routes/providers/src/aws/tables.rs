//! EC2 route tables of a cluster: chosen by ID or by tag, and read page by page.

use std::time::Duration;

use parking_lot::Mutex;
use weft_model::SharedStr;
use weft_routes::{ProviderError, Route};

use super::{
    api::{Api, Operation},
    form::Form,
    listing,
    settings::TableChoice,
    wire,
};
use crate::pages::Pages;

/// Time by which lists may lag behind changes; EC2 promises no bound, and seconds were observed.
pub(super) const SETTLE: Duration = Duration::from_secs(5);

/// Tables for each page. EC2 allows 100; fewer bound the memory that an answer needs.
const PER_PAGE: &str = "40";

/// The tag of clusters from before every cluster had a tag of its own.
const LEGACY_TAG: &str = "tag:KubernetesCluster";

/// The tables of the cluster: given by ID, or found by tag and remembered from the last list.
#[derive(Debug)]
pub(super) struct Tables {
    choice: TableChoice,
    ids: Mutex<Option<Vec<SharedStr>>>,
}

impl Tables {
    pub(super) fn new(choice: TableChoice) -> Self {
        let ids = match &choice {
            TableChoice::Ids(ids) => Some(ids.iter().map(|id| SharedStr::new(id)).collect()),
            TableChoice::Cluster(_) => None,
        };
        Self {
            choice,
            ids: Mutex::new(ids),
        }
    }

    /// The routes of all tables, merged into one.
    pub(super) async fn list(&self, api: &Api) -> Result<Vec<Route>, ProviderError> {
        let tables = self.read(api).await?;
        Ok(listing::routes(&tables))
    }

    /// The tables to write to, without a call if they are known.
    pub(super) async fn ids(&self, api: &Api) -> Result<Vec<SharedStr>, ProviderError> {
        let known = self.ids.lock().clone();
        match known {
            Some(ids) => Ok(ids),
            None => Ok(ids_of(&self.read(api).await?)),
        }
    }

    async fn read(&self, api: &Api) -> Result<Vec<wire::RouteTable>, ProviderError> {
        let tables = match &self.choice {
            TableChoice::Ids(ids) => {
                let named = ids.iter().map(String::as_str);
                let filter = Form::default().filter("route-table-id", named);
                let tables = describe(api, filter).await?;
                // A table that is not found is not an empty table.
                match ids
                    .iter()
                    .find(|id| tables.iter().all(|table| table.id != **id))
                {
                    Some(missing) => return Err(no_table(missing)),
                    None => tables,
                }
            }
            TableChoice::Cluster(cluster) => tagged(api, cluster).await?,
        };
        let mut ids = self.ids.lock();
        *ids = Some(ids_of(&tables));
        Ok(tables)
    }
}

fn ids_of(tables: &[wire::RouteTable]) -> Vec<SharedStr> {
    tables
        .iter()
        .map(|table| SharedStr::new(&table.id))
        .collect()
}

fn no_table(name: &str) -> ProviderError {
    ProviderError::Invalid(format!("no route table found for {name}").as_str().into())
}

async fn tagged(api: &Api, cluster: &str) -> Result<Vec<wire::RouteTable>, ProviderError> {
    let tag = format!("kubernetes.io/cluster/{cluster}");
    let tables = describe(api, Form::default().filter("tag-key", [tag.as_str()])).await?;
    if !tables.is_empty() {
        return Ok(tables);
    }
    let tables = describe(api, Form::default().filter(LEGACY_TAG, [cluster])).await?;
    if tables.is_empty() {
        return Err(no_table(cluster));
    }
    Ok(tables)
}

async fn describe(api: &Api, filter: Form) -> Result<Vec<wire::RouteTable>, ProviderError> {
    let filter = filter.with("MaxResults", PER_PAGE);
    let mut found = Vec::new();
    let mut pages = Pages::default();
    let mut page = filter.clone();
    loop {
        let reply: wire::RouteTables = api.call(Operation::DescribeRouteTables, &page).await?;
        let entries = reply.entries();
        found.extend(reply.tables.items);
        match pages.turn(entries, reply.next)? {
            Some(token) => page = filter.clone().with("NextToken", &token),
            None => return Ok(found),
        }
    }
}
