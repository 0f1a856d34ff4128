//! Grants: what the state machine keeps of them, and what principals are answered by them (I-13).

mod fixture;
mod site;

use fixture::{Cluster, refusal_of, spec, table_of};
use mneme_meta::limits::GRANTS_MAX;
use mneme_meta::state::command::{Command, Outcome};
use mneme_meta::state::events::Since;
use mneme_net::Role;
use mneme_proto::control::{CatalogueRequest, CatalogueResponse, Change, TableRef};
use mneme_proto::grant::{Grant, Level};
use mneme_proto::ids::TableId;
use mneme_proto::refusal::Refusal;
use site::{Caller, Site, TestNode, named};

fn grant(principal: &str, level: Level) -> Grant {
    Grant {
        principal: principal.into(),
        level,
    }
}

fn grants(cluster: &Cluster, table: TableId) -> Vec<Grant> {
    let record = cluster.state.table(&TableRef::Id(table));
    record.expect("it is there").grants()
}

#[test]
fn a_grant_is_given_replaced_and_taken_away() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    let other = cluster.served_table(spec("other"), &mut nodes);
    let before = cluster.state.revision();
    for (level, kept) in [
        (Some(Level::Read), vec![grant("ann", Level::Read)]),
        (Some(Level::Admin), vec![grant("ann", Level::Admin)]),
        (None, vec![]),
    ] {
        let revision = cluster.state.revision();
        cluster.grant(table, "ann", level);
        assert_eq!(grants(&cluster, table), kept);
        assert_eq!(cluster.state.revision().0, revision.0 + 1);
        // The same again is no change.
        cluster.grant(table, "ann", level);
        assert_eq!(cluster.state.revision().0, revision.0 + 1);
    }
    assert_eq!(
        cluster.state.since(before),
        Since::Changes(vec![Change::Table(table); 3])
    );
    assert_eq!(grants(&cluster, other), vec![]);
    let before = cluster.state.clone();
    let refused = refusal_of(cluster.grant(table, "no spaces", Some(Level::Read)));
    assert!(refused.to_string().starts_with("principal: "), "{refused}");
    assert_eq!(cluster.state, before);
}

#[test]
fn grants_are_bounded_and_go_with_their_table() {
    let mut cluster = Cluster::new();
    let mut nodes = [cluster.register("n1", vec![])];
    let table = cluster.served_table(spec("t"), &mut nodes);
    for n in 0..GRANTS_MAX {
        let granted = cluster.grant(table, &format!("c{n}"), Some(Level::Read));
        assert!(matches!(granted, Outcome::Done { .. }), "{granted:?}");
    }
    let one_more = refusal_of(cluster.grant(table, "ann", Some(Level::Read)));
    assert!(matches!(one_more, Refusal::Limit { .. }), "{one_more}");
    // Whoever has a grant can be given another, and room can be made.
    cluster.grant(table, "c7", Some(Level::Write));
    cluster.grant(table, "c8", None);
    cluster.grant(table, "ann", Some(Level::Read));
    assert_eq!(grants(&cluster, table).len(), GRANTS_MAX);

    cluster.state.apply(Command::DropTable {
        table: TableRef::Id(table),
    });
    let again = cluster.served_table(spec("t"), &mut nodes);
    assert_eq!(grants(&cluster, again), vec![]);
}

/// A creator's own retry finds the table; another's request of the same number is another.
#[test]
fn a_creator_is_admin_of_what_it_made() {
    let mut cluster = Cluster::new();
    cluster.register("n1", vec![]);
    let candidates = cluster.candidates();
    let mut create = |creator: &str| {
        cluster.state.apply(Command::CreateTable {
            creator: Some(creator.into()),
            request: 7,
            spec: spec("t"),
            candidates: candidates.clone(),
            loading: false,
        })
    };
    let table = table_of(&create("ann"));
    assert_eq!(table_of(&create("ann")), table);
    let taken = refusal_of(create("bob"));
    assert_eq!(taken, Refusal::TableExists { table: "t".into() });
    assert_eq!(grants(&cluster, table), [grant("ann", Level::Admin)]);
}

fn give(table: &str, principal: &str, level: Option<Level>) -> CatalogueRequest {
    CatalogueRequest::Grant {
        table: named(table),
        principal: principal.into(),
        level,
    }
}

async fn listed(caller: &Caller) -> Vec<String> {
    match caller.ask(CatalogueRequest::ListTables).await {
        CatalogueResponse::Tables(tables) => tables.into_iter().map(|t| t.spec.name).collect(),
        other => panic!("no list: {other:?}"),
    }
}

async fn done(caller: &Caller, request: CatalogueRequest) {
    let answer = caller.ask(request).await;
    assert!(
        matches!(answer, CatalogueResponse::Done { .. }),
        "{answer:?}"
    );
}

/// I-13: what is not granted is answered as what is not there, in lists, maps and watches alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_granted_is_not_there() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    let from = node.caller.revision().await;
    tokio::spawn(node.run(false));
    let ann = site.dial(&catalogue, Role::Client, "ann").await;
    let bob = site.dial(&catalogue, Role::Client, "bob").await;
    let map = ann
        .map(CatalogueRequest::CreateTable {
            request: 1,
            spec: spec("t"),
            loading: false,
        })
        .await;
    assert_eq!(map.grants, [], "a client is not told who else there is");

    assert_eq!(
        (listed(&ann).await, listed(&bob).await),
        (vec!["t".into()], vec![])
    );
    let of = |table: &str| CatalogueRequest::GetMap {
        table: named(table),
    };
    let hidden = bob.refused(of("t")).await;
    let absent = bob.refused(of("x")).await;
    assert_eq!(
        hidden
            .to_string()
            .replace("'t'", "'x'")
            .replace(" t ", " x "),
        absent.to_string()
    );
    let CatalogueResponse::Status(status) = bob.ask(CatalogueRequest::Status).await else {
        panic!("no status");
    };
    assert_eq!((status.nodes.len(), status.tables.len()), (1, 0));
    let watch = CatalogueRequest::Watch { from, wait_ms: 1 };
    let CatalogueResponse::Changes { changes, revision } = bob.ask(watch.clone()).await else {
        panic!("no changes");
    };
    assert!(changes.is_empty() && revision > from, "{changes:?}");

    // A grant wakes its principal's watch; it is no licence to grant.
    let waiting = CatalogueRequest::Watch {
        from: revision,
        wait_ms: 10_000,
    };
    let (woken, ()) = tokio::join!(
        bob.ask(waiting),
        done(&ann, give("t", "bob", Some(Level::Write)))
    );
    let CatalogueResponse::Changes { changes, .. } = woken else {
        panic!("not woken: {woken:?}");
    };
    assert_eq!(changes, [Change::Table(map.table)]);
    assert_eq!(bob.table("t").await.table, map.table);
    let refused = bob.refused(give("t", "bob", Some(Level::Admin))).await;
    assert_eq!(
        refused.to_string(),
        "permission denied: client 'bob' may write table 't', not administer it: an admin of it \
         can run `mneme grant t bob admin`"
    );

    // A table that is gone took its grants along: its nodes are told, and clients by them.
    done(&ann, CatalogueRequest::DropTable { table: named("t") }).await;
    let CatalogueResponse::Changes { changes, .. } = ann.ask(watch).await else {
        panic!("no changes");
    };
    assert!(changes.is_empty(), "{changes:?}");
}

/// Grants are as durable as the tables; admins of the cluster need none, nodes get no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_survive_and_admins_need_none() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    tokio::spawn(node.run(false));
    let ops = site.dial(&catalogue, Role::Admin, "ops").await;
    ops.map(CatalogueRequest::CreateTable {
        request: 1,
        spec: spec("t"),
        loading: false,
    })
    .await;
    done(&ops, give("t", "ann", Some(Level::Read))).await;
    catalogue.shutdown().await;

    let catalogue = site.open(false).await;
    let ops = site.dial(&catalogue, Role::Admin, "ops").await;
    let asked = CatalogueRequest::Grants { table: named("t") };
    assert_eq!(
        ops.ask(asked.clone()).await,
        CatalogueResponse::Grants(vec![grant("ann", Level::Read)])
    );
    // The same name in another role is another principal.
    let client = site.dial(&catalogue, Role::Client, "ops").await;
    assert_eq!(listed(&client).await, Vec::<String>::new());
    let ann = site.dial(&catalogue, Role::Client, "ann").await;
    assert_eq!(listed(&ann).await, ["t"]);
    assert!(matches!(
        ann.refused(asked.clone()).await,
        Refusal::NotPermitted {
            has: Some(Level::Read),
            needs: Level::Admin,
            ..
        }
    ));
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    assert_eq!(node.maps().await[0].grants, [grant("ann", Level::Read)]);
    assert!(matches!(
        node.caller.refused(asked).await,
        Refusal::PermissionDenied { .. }
    ));
}
