//! A table that belongs to the socket which created it.

use std::process::{Command, Output};

use serde_json::json;
use weft_host::nftables::{Nftables as Connection, Ownership};
use weft_model::IpFamily;
use weft_nftables::{HostKernel, Nftables, TABLE, TableOptions, Watch, cleanup};
use weft_proxy::SyncError;
use weft_testkit::lab;

use crate::world::{World, written};

fn nft(arguments: &[&str]) -> Output {
    Command::new("nft").args(arguments).output().unwrap()
}

fn owned(family: IpFamily) -> Nftables<HostKernel> {
    let options = TableOptions {
        ownership: Ownership::Owned,
        ..TableOptions::default()
    };
    Nftables::with_options(HostKernel::new(family, Watch::new()), options)
}

#[test]
fn an_owned_table_resists_others_and_is_taken_over_by_the_next_process() {
    lab::with_programs(&["nft"], |_| {
        let family = IpFamily::V4;
        let service = |number: u8| {
            json!({"kind": "Service", "metadata": {"namespace": "shop", "name": format!("s{number}")},
                   "spec": {"clusterIP": format!("10.96.0.{number}"), "ports": [{"port": 80}]}})
        };
        let count = || {
            let mut connection = Connection::open().unwrap();
            let services = connection.elements(family, TABLE, "services");
            services.map_or(0, |services| services.len())
        };
        let mut world = World::real(family);
        world.backend = owned(family);
        world.put(&service(1));
        world.sync();
        for command in [
            &["flush", "ruleset"][..],
            &["delete", "table", "ip", TABLE],
            &["flush", "chain", "ip", TABLE, "services"],
            &["add", "chain", "ip", TABLE, "intruder"],
        ] {
            nft(command);
            assert_eq!(count(), 1, "{command:?}");
        }
        assert!(cleanup(family).is_err(), "its owner runs");

        // A second process of ours cannot write either, and says so.
        let mut second = World::real(family);
        second.backend = owned(family);
        second.put(&service(2));
        let error = second.try_sync().unwrap_err();
        assert!(matches!(error, SyncError::Unavailable { .. }), "{error:?}");
        assert_eq!(count(), 1);
        drop(second);

        world.put(&service(3));
        world.sync();
        // The process ends: the table stays, and the next one takes it over.
        world.backend = owned(family);
        world.changed.clear();
        let report = world.sync();
        assert_eq!(written(&report), 0, "{report:?}");
        assert_eq!(count(), 2);
        nft(&["flush", "ruleset"]);
        assert_eq!(count(), 2, "it is owned again");

        // Without the option the table is created again, in one commit.
        world.backend = Nftables::new(HostKernel::new(family, Watch::new()));
        world.changed.clear();
        world.sync();
        assert_eq!(count(), 2);
        assert!(cleanup(family).unwrap());
    });
}
