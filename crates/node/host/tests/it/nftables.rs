//! nf_tables over netlink, against the kernel of a lab.

use std::time::Duration;

use weft_host::nftables::{
    Batch, Chain, Change, CommitError, Datum, Element, Expression, Field, Hook, Kind, Listener,
    MapChange, Meta, Nftables, Notice, Ownership, Place, Reason, Register, Rejection, Rule, Set,
    Table, TableChange, Traits, Value, Verdict, delete_table,
};
use weft_model::IpFamily;
use weft_testkit::lab;

const TABLE: &str = "test";

fn within(family: IpFamily, change: TableChange) -> Change {
    Change::Within {
        family,
        table: TABLE.to_owned(),
        change,
    }
}

fn batch(family: IpFamily, changes: &[TableChange]) -> Batch {
    let mut batch = Batch::new();
    for change in changes {
        batch.push(&within(family, change.clone()));
    }
    batch
}

fn map() -> Set {
    Set {
        name: "numbers".to_owned(),
        key: vec![Field::Protocol, Field::Classid],
        kind: Kind::Map(vec![Field::Classid]),
        traits: Traits::default(),
    }
}

fn element(key: u32, data: u32) -> Element {
    Element {
        datum: Some(Datum::Value(Value::EMPTY.with_number(data))),
        comment: Some(format!("number {key}").into()),
        ..Element::of_key(Value::EMPTY.with(&[6]).with_number(key))
    }
}

fn add(elements: Vec<Element>) -> TableChange {
    TableChange::AddElements {
        set: "numbers".to_owned(),
        is_concatenation: true,
        elements,
    }
}

fn delete(elements: Vec<Element>) -> TableChange {
    TableChange::DeleteElements {
        set: "numbers".to_owned(),
        is_concatenation: true,
        elements,
    }
}

/// A table with a map.
fn create(nftables: &mut Nftables, family: IpFamily) {
    let mut batch = Batch::new();
    batch.push(&Change::AddTable(Table {
        family,
        name: TABLE.to_owned(),
        comment: Some("a test".to_owned()),
        ownership: Ownership::Shared,
    }));
    batch.push(&within(family, TableChange::AddSet(map())));
    nftables.commit(&batch).unwrap();
}

fn refused(outcome: Result<(), CommitError>) -> (Place, Reason) {
    match outcome {
        Err(CommitError::Refused(refused)) => (refused[0].place, refused[0].reason),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn everything_that_is_written_is_read_back() {
    lab::inside(|_| {
        for family in IpFamily::ALL {
            let mut nftables = Nftables::open().unwrap();
            create(&mut nftables, family);
            let clients = Set {
                name: "clients".to_owned(),
                key: vec![Field::Address(family), Field::Classid],
                kind: Kind::Map(vec![Field::Classid]),
                traits: Traits {
                    is_interval: false,
                    dynamic: Some(100),
                    counts: false,
                },
            };
            let verdicts = Set {
                name: "verdicts".to_owned(),
                key: vec![Field::Classid],
                kind: Kind::VerdictMap,
                traits: Traits::default(),
            };
            let ranges = Set {
                name: "ranges".to_owned(),
                key: vec![Field::Port, Field::Address(family)],
                kind: Kind::Set,
                traits: Traits {
                    is_interval: true,
                    dynamic: None,
                    counts: false,
                },
            };
            let addresses = Set {
                name: "addresses".to_owned(),
                key: vec![Field::Address(family)],
                kind: Kind::Set,
                traits: Traits::default(),
            };
            let sets = [clients, verdicts, ranges, addresses];
            let chains = [
                Chain {
                    name: "base".to_owned(),
                    hook: Some((Hook::Prerouting, -100)),
                },
                Chain {
                    name: "plain".to_owned(),
                    hook: None,
                },
            ];
            let number = |number: u32| Value::EMPTY.with_number(number);
            let [first, data] = [Register(0), Register(8)];
            let width = match family {
                IpFamily::V4 => 1,
                IpFamily::V6 => 4,
            };
            let source = Expression::Payload {
                header: weft_host::nftables::Header::Network,
                offset: 8,
                length: u32::from(width) * 4,
                to: first,
            };
            let expressions: Vec<Vec<Expression>> = vec![
                vec![
                    source,
                    Expression::Meta(Meta::Priority, Register(width)),
                    Expression::Bitwise {
                        register: Register(width),
                        mask: number(0xffff_0000),
                        xor: number(0),
                    },
                    Expression::Meta(Meta::Priority, data),
                    Expression::ChangeMap {
                        map: "clients".to_owned(),
                        change: MapChange::Update { timeout: 5000 },
                        key: first,
                        data,
                    },
                ],
                vec![
                    Expression::Meta(Meta::Priority, first),
                    Expression::LookupVerdict {
                        map: "verdicts".to_owned(),
                        key: first,
                    },
                ],
                vec![
                    Expression::Meta(Meta::Protocol, first),
                    Expression::Compare {
                        equal: false,
                        register: first,
                        value: Value::from_slice(&[6]).unwrap(),
                    },
                    Expression::Reject(Rejection::PortUnreachable(family)),
                ],
                vec![
                    Expression::Random {
                        modulus: 3,
                        offset: 7,
                        to: first,
                    },
                    Expression::SetMeta(Meta::Priority, first),
                    Expression::Verdict(Verdict::Goto("plain".to_owned())),
                ],
            ];
            let rules: Vec<Rule> = expressions
                .into_iter()
                .map(|expressions| Rule {
                    chain: "base".to_owned(),
                    expressions,
                    comment: Some("why".to_owned()),
                })
                .collect();
            let verdict = Element {
                datum: Some(Datum::Verdict(Verdict::Jump("plain".to_owned()))),
                ..Element::of_key(number(3))
            };
            let address = |last: u8| match family {
                IpFamily::V4 => Value::EMPTY.with(&[10, 0, 0, last]),
                IpFamily::V6 => {
                    let mut bytes = [0; 16];
                    (bytes[0], bytes[15]) = (0xfd, last);
                    Value::EMPTY.with(&bytes)
                }
            };
            let port = Value::EMPTY.with(&80u16.to_be_bytes());
            let range = Element {
                end: Some(port.with(address(127).as_bytes())),
                ..Element::of_key(port.with(address(0).as_bytes()))
            };
            let mut changes: Vec<TableChange> =
                sets.iter().cloned().map(TableChange::AddSet).collect();
            changes.extend(chains.iter().cloned().map(TableChange::AddChain));
            changes.extend(rules.iter().cloned().map(TableChange::AddRule));
            let of = |set: &str, is_concatenation, element: &Element| TableChange::AddElements {
                set: set.to_owned(),
                is_concatenation,
                elements: vec![element.clone()],
            };
            changes.extend([
                of("verdicts", false, &verdict),
                of("ranges", true, &range),
                of("addresses", false, &Element::of_key(address(1))),
                add((0..2000).map(|key| element(key, key + 1)).collect()),
            ]);
            nftables.commit(&batch(family, &changes)).unwrap();

            let table = nftables.table(family, TABLE).unwrap().unwrap();
            assert_eq!(table.comment.as_deref(), Some("a test"));
            let read = nftables.sets(family, TABLE).unwrap();
            for set in sets.iter().chain([&map()]) {
                assert!(read.contains(set), "{set:?} is not in {read:?}");
            }
            assert_eq!(nftables.chains(family, TABLE).unwrap(), chains);
            assert_eq!(nftables.rules(family, TABLE).unwrap(), rules);
            let mut elements = |set| nftables.elements(family, TABLE, set).unwrap();
            assert_eq!(elements("verdicts"), [verdict]);
            assert_eq!(elements("ranges"), [range]);
            assert_eq!(elements("addresses"), [Element::of_key(address(1))]);
            let mut numbers = elements("numbers");
            numbers.sort_by_key(|element| element.key.last_number());
            let expected: Vec<Element> = (0..2000).map(|key| element(key, key + 1)).collect();
            assert_eq!(numbers, expected);
            // Those that do not exist are left out, wherever they are.
            let keys = [5000, 7, 5001, 5002, 9, 5003];
            let keys = keys.map(|key| element(key, 0).key);
            let found = nftables
                .get_elements(family, TABLE, "numbers", &keys)
                .unwrap();
            assert_eq!(found, [element(7, 8), element(9, 10)]);
            assert!(delete_table(family, TABLE).unwrap());
            assert!(!delete_table(family, TABLE).unwrap());
        }
    });
}

#[test]
fn a_refused_batch_names_the_change_and_the_element_and_leaves_nothing() {
    lab::inside(|_| {
        let family = IpFamily::V4;
        let mut nftables = Nftables::open().unwrap();
        create(&mut nftables, family);
        let some = |range: std::ops::Range<u32>| range.map(|key| element(key, key)).collect();
        nftables
            .commit(&batch(family, &[add(some(0..10))]))
            .unwrap();

        // The same again is no mistake, other data is; and the place is named, also in a list that
        // takes several messages.
        nftables
            .commit(&batch(family, &[add(some(0..10))]))
            .unwrap();
        let mut many: Vec<Element> = some(100..2100);
        many.push(element(3, 99));
        many.extend(some(3000..3010));
        let outcome = nftables.commit(&batch(family, &[add(some(20..21)), add(many)]));
        let place = Place {
            change: 1,
            element: Some(2000),
        };
        assert_eq!(refused(outcome), (place, Reason::Exists));
        assert_eq!(
            nftables.elements(family, TABLE, "numbers").unwrap().len(),
            10
        );

        let missing = vec![element(1, 0), element(77, 0), element(2, 0)];
        let outcome = nftables.commit(&batch(family, &[delete(missing)]));
        let place = Place {
            change: 0,
            element: Some(1),
        };
        assert_eq!(refused(outcome), (place, Reason::Missing));
        assert_eq!(
            nftables.elements(family, TABLE, "numbers").unwrap().len(),
            10
        );

        // An element that changes is deleted and added in one batch.
        let replaced = [delete(vec![element(3, 0)]), add(vec![element(3, 99)])];
        nftables.commit(&batch(family, &replaced)).unwrap();
        let key = [element(3, 0).key];
        let found = nftables
            .get_elements(family, TABLE, "numbers", &key)
            .unwrap();
        assert_eq!(found, [element(3, 99)]);

        // A chain to which a rule jumps cannot go.
        let chain = |name: &str| {
            TableChange::AddChain(Chain {
                name: name.to_owned(),
                hook: None,
            })
        };
        let jump = TableChange::AddRule(Rule {
            chain: "from".to_owned(),
            expressions: vec![Expression::Verdict(Verdict::Jump("to".to_owned()))],
            comment: None,
        });
        let chains = [chain("from"), chain("to"), jump];
        nftables.commit(&batch(family, &chains)).unwrap();
        let gone = [TableChange::DeleteChain("to".to_owned())];
        let outcome = nftables.commit(&batch(family, &gone));
        assert_eq!(refused(outcome).1, Reason::Busy);
        let nowhere = TableChange::AddRule(Rule {
            chain: "from".to_owned(),
            expressions: vec![Expression::Verdict(Verdict::Jump("nowhere".to_owned()))],
            comment: None,
        });
        let outcome = nftables.commit(&batch(family, &[chain("more"), nowhere]));
        // The expression of the rule.
        let place = Place {
            change: 1,
            element: Some(0),
        };
        assert_eq!(refused(outcome), (place, Reason::Missing));
        let unknown = TableChange::AddRule(Rule {
            chain: "from".to_owned(),
            expressions: vec![Expression::Other("no-such-thing".to_owned())],
            comment: None,
        });
        assert!(nftables.commit(&batch(family, &[unknown])).is_err());
    });
}

#[test]
fn a_batch_of_too_many_bytes_does_nothing() {
    lab::inside(|_| {
        let family = IpFamily::V6;
        let mut nftables = Nftables::open().unwrap();
        create(&mut nftables, family);
        let one = |key| batch(family, &[add(vec![element(key, 0)])]);
        let of = |bytes: usize| {
            let mut sum = 0;
            let elements = (10..).map(|key| element(key, 0)).take_while(|element| {
                sum += element.size(false);
                sum < bytes
            });
            batch(family, &[add(elements.collect())])
        };
        let limit = nftables.batch_limit();
        let outcome = nftables.commit(&of(limit));
        assert!(
            matches!(outcome, Err(CommitError::TooLarge(_))),
            "{outcome:?}"
        );
        let keys = [element(10, 0).key];
        let found = nftables.get_elements(family, TABLE, "numbers", &keys);
        assert_eq!(found.unwrap(), [], "nothing of it");
        // The headers of messages are less than a fiftieth.
        nftables.commit(&of(limit - limit / 50)).unwrap();
        // The socket is as good as before.
        nftables.commit(&one(3)).unwrap();
    });
}

#[test]
fn changes_of_others_are_noticed_and_own_ones_are_not() {
    lab::inside(|_| {
        let mut own = Nftables::open().unwrap();
        let mut other = Nftables::open().unwrap();
        let mut listener = Listener::open().unwrap();
        let port = own.port().unwrap();
        assert_ne!(port, other.port().unwrap());
        let mut received = || {
            let mut notices = Vec::new();
            let patience = Duration::from_millis(50);
            let mut each = |notice| notices.push(notice);
            while listener
                .wait(patience, &|sender| sender == port, &mut each)
                .unwrap()
            {}
            notices
        };
        create(&mut own, IpFamily::V4);
        assert_eq!(received(), []);
        let change = batch(IpFamily::V4, &[add(vec![element(1, 1)])]);
        other.commit(&change).unwrap();
        let notice = Notice::Changed {
            family: IpFamily::V4,
            table: TABLE.to_owned(),
        };
        assert_eq!(received(), [notice]);
    });
}

#[test]
fn the_kernel_drops_notifications_of_sockets_that_a_listener_ignores() {
    lab::inside(|_| {
        let mut sockets: Vec<Nftables> = (0..3).map(|_| Nftables::open().unwrap()).collect();
        let ports: Vec<u32> = sockets.iter().map(|one| one.port().unwrap()).collect();
        create(&mut sockets[0], IpFamily::V4);
        let mut listener = Listener::open().unwrap();
        let filter = listener.filter().unwrap();
        for ignored in [&ports[..0], &ports[..1], &ports[..2], &ports[1..]] {
            filter.ignore(ignored).unwrap();
            for (index, socket) in sockets.iter_mut().enumerate() {
                socket
                    .commit(&batch(IpFamily::V4, &[add(vec![element(1, 1)])]))
                    .unwrap();
                socket
                    .commit(&batch(IpFamily::V4, &[delete(vec![element(1, 1)])]))
                    .unwrap();
                let mut is_received = false;
                let patience = Duration::from_millis(20);
                while listener.wait(patience, &|_| true, &mut |_| {}).unwrap() {
                    is_received = true;
                }
                assert_eq!(
                    is_received,
                    !ignored.contains(&ports[index]),
                    "{ignored:?} {index}"
                );
            }
        }
    });
}
