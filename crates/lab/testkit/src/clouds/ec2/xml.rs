//! Responses of the EC2 query API as XML.

use std::fmt::Write as _;

use http::StatusCode;
use ipnet::IpNet;

use super::{Ec2Instance, Ec2Table, Ec2Target, form::Form, refusal::Refusal};
use crate::clouds::server::Reply;

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

pub(super) fn reply(body: String) -> Reply {
    Reply {
        status: StatusCode::OK,
        content_type: "text/xml;charset=UTF-8",
        headers: Vec::new(),
        body,
        result: "ok".to_owned(),
    }
}

fn response(action: &str, inside: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <{action}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">\
         <requestId>double</requestId>{inside}</{action}Response>"
    )
}

/// The response of an action that returns nothing else.
pub(super) fn done(action: &str) -> String {
    response(action, "<return>true</return>")
}

pub(super) fn route_tables(
    tables: &[Ec2Table],
    instances: &[Ec2Instance],
    form: &Form,
    page: usize,
) -> Result<String, Refusal> {
    let filters = form.filters();
    let mut found = Vec::new();
    for table in tables {
        let mut matches = true;
        for (name, values) in &filters {
            matches &= table_matches(table, name, values)?;
        }
        if matches {
            found.push(route_table(table, instances));
        }
    }
    let inside = paged("routeTableSet", &found, form, page);
    Ok(response("DescribeRouteTables", &inside))
}

fn table_matches(table: &Ec2Table, name: &str, values: &[&str]) -> Result<bool, Refusal> {
    let tag = name.strip_prefix("tag:");
    Ok(match name {
        "route-table-id" => values.contains(&table.id.as_str()),
        "vpc-id" => values.contains(&table.vpc.as_str()),
        "tag-key" => values.iter().any(|key| table.tags.contains_key(*key)),
        _ => {
            let bad = || Refusal::new("InvalidParameterValue", name);
            let value = table.tags.get(tag.ok_or_else(bad)?);
            value.is_some_and(|value| values.contains(&value.as_str()))
        }
    })
}

fn route_table(table: &Ec2Table, instances: &[Ec2Instance]) -> String {
    let mut routes = String::new();
    for (destination, target) in &table.routes {
        routes += &route(destination, target, instances);
    }
    let mut tags = String::new();
    for (key, value) in &table.tags {
        let (key, value) = (escape(key), escape(value));
        let _ = write!(tags, "<item><key>{key}</key><value>{value}</value></item>");
    }
    format!(
        "<item><routeTableId>{}</routeTableId><vpcId>{}</vpcId><routeSet>{routes}</routeSet>\
         <associationSet/><propagatingVgwSet/><tagSet>{tags}</tagSet></item>",
        table.id, table.vpc
    )
}

fn route(destination: &IpNet, target: &Ec2Target, instances: &[Ec2Instance]) -> String {
    let element = match destination {
        IpNet::V4(_) => "destinationCidrBlock",
        IpNet::V6(_) => "destinationIpv6CidrBlock",
    };
    let alive = |id: &str| instances.iter().any(|one| one.id == id && !one.terminated);
    let (leads, state) = match target {
        Ec2Target::Instance(id) if alive(id) => {
            (format!("<instanceId>{id}</instanceId>"), "active")
        }
        // The API does not name a terminated instance.
        Ec2Target::Instance(_) => (String::new(), "blackhole"),
        Ec2Target::Interface(id) => (
            format!("<networkInterfaceId>{id}</networkInterfaceId>"),
            "active",
        ),
        Ec2Target::Gateway(id) => (format!("<gatewayId>{id}</gatewayId>"), "active"),
    };
    let local = *target == Ec2Target::Gateway("local".to_owned());
    let origin = if local {
        "CreateRouteTable"
    } else {
        "CreateRoute"
    };
    format!(
        "<item><{element}>{destination}</{element}>{leads}<state>{state}</state>\
         <origin>{origin}</origin></item>"
    )
}

pub(super) fn instances(
    instances: &[Ec2Instance],
    form: &Form,
    page: usize,
) -> Result<String, Refusal> {
    let named = form.list("InstanceId");
    for id in &named {
        let known = instances.iter().any(|instance| instance.id == *id);
        known
            .then_some(())
            .ok_or_else(|| Refusal::no_instance(id))?;
    }
    let filters = form.filters();
    let mut found = Vec::new();
    for one in instances {
        let mut matches = named.is_empty() || named.contains(&one.id.as_str());
        for (name, values) in &filters {
            let bad = || Refusal::new("InvalidParameterValue", name);
            let (by_id, value) = (*name == "instance-id", one.id.as_str());
            by_id.then_some(()).ok_or_else(bad)?;
            matches &= values.contains(&value);
        }
        if matches {
            found.push(reservation(one));
        }
    }
    let inside = paged("reservationSet", &found, form, page);
    Ok(response("DescribeInstances", &inside))
}

fn reservation(instance: &Ec2Instance) -> String {
    let mut interfaces = String::new();
    for (index, id) in instance.interfaces.iter().enumerate() {
        // The first one has the instance's address, the others the same with another last octet.
        let mut octets = instance.ip.octets();
        octets[3] = octets[3].wrapping_add(u8::try_from(index * 100).unwrap_or(u8::MAX));
        let ip = std::net::Ipv4Addr::from(octets);
        let _ = write!(
            interfaces,
            "<item><networkInterfaceId>{id}</networkInterfaceId>\
             <privateIpAddress>{ip}</privateIpAddress>\
             <attachment><deviceIndex>{index}</deviceIndex></attachment></item>"
        );
    }
    let state = if instance.terminated {
        "terminated"
    } else {
        "running"
    };
    format!(
        "<item><instancesSet><item><instanceId>{}</instanceId>\
         <instanceState><name>{state}</name></instanceState>\
         <privateIpAddress>{}</privateIpAddress><sourceDestCheck>{}</sourceDestCheck>\
         <networkInterfaceSet>{interfaces}</networkInterfaceSet></item></instancesSet></item>",
        instance.id, instance.ip, instance.source_dest_check
    )
}

fn paged(set: &str, items: &[String], form: &Form, largest: usize) -> String {
    let (from, size) = form.page(largest);
    let page: String = items
        .iter()
        .skip(from)
        .take(size)
        .map(String::as_str)
        .collect();
    let next = from + size;
    let token = if next < items.len() {
        format!("<nextToken>{next}</nextToken>")
    } else {
        String::new()
    };
    format!("<{set}>{page}</{set}>{token}")
}
