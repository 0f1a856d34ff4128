//! A member behind real links: what clients and nodes are answered, and what survives.

mod fixture;
mod site;

use std::sync::atomic::Ordering;
use std::time::Instant;

use fixture::spec;
use mneme_meta::limits::{NODE_LEASE, SNAPSHOT_EVERY_ENTRIES};
use mneme_meta::log_store::LogStore;
use mneme_meta::log_store::database::CatalogueStore;
use mneme_meta::{Catalogue, CatalogueOpenError};
use mneme_net::Role;
use mneme_proto::codec;
use mneme_proto::control::{CatalogueRequest, CatalogueResponse, Change};
use mneme_proto::frame::FrameKind;
use mneme_proto::ids::{Generation, Revision, TableGeneration};
use mneme_proto::map::TableState;
use mneme_proto::refusal::Refusal;
use openraft::storage::RaftLogStorage;
use site::{PATIENCE, Site, TestNode, named};

fn create(request: u64, name: &str) -> CatalogueRequest {
    CatalogueRequest::CreateTable {
        request,
        spec: spec(name),
        loading: false,
    }
}

/// The whole way of a table: made by its nodes, loaded, published, dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_from_creation_to_drop() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let client = site.dial(&catalogue, Role::Admin, "c").await;
    let none = client.refused(create(1, "t")).await;
    assert_eq!(none, Refusal::NoNodes);

    for name in ["n1", "n2"] {
        let node = TestNode::enter(&site, &catalogue, name).await;
        tokio::spawn(node.run(false));
    }
    let map = client.map(create(2, "t")).await;
    assert_eq!(map.state, TableState::Mutable);
    assert_eq!((map.nodes.len(), map.shards.len()), (2, 4));
    assert_eq!(map.cluster, catalogue.cluster());
    // The client's retry gets the same table, another creator is refused.
    assert_eq!(client.map(create(2, "t")).await.table, map.table);
    let taken = client.refused(create(3, "t")).await;
    assert_eq!(taken, Refusal::TableExists { table: "t".into() });

    let begun = CatalogueRequest::BeginLoad { table: named("t") };
    let CatalogueResponse::Load { generation, .. } = client.ask(begun).await else {
        panic!("no load");
    };
    assert_eq!(generation, TableGeneration(1));
    let hollow = CatalogueRequest::Publish {
        table: map.table,
        generation,
        replicas: vec![],
    };
    assert!(matches!(
        client.refused(hollow).await,
        Refusal::Conflict { .. }
    ));

    let CatalogueResponse::Tables(tables) = client.ask(CatalogueRequest::ListTables).await else {
        panic!("no list");
    };
    assert_eq!((tables.len(), tables[0].state), (1, TableState::Mutable));
    let dropped = client
        .ask(CatalogueRequest::DropTable { table: named("t") })
        .await;
    assert!(matches!(dropped, CatalogueResponse::Done { .. }));
    let gone = client
        .refused(CatalogueRequest::GetMap { table: named("t") })
        .await;
    assert_eq!(gone, Refusal::UnknownTable { table: "t".into() });
    catalogue.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_does_not_fit_is_refused_and_leaves_no_trace() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let client = site.dial(&catalogue, Role::Admin, "c").await;
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    tokio::spawn(node.run(true));
    let refused = client.refused(create(1, "t")).await;
    assert!(matches!(refused, Refusal::ShardFailed { .. }), "{refused}");
    assert!(
        refused.to_string().contains("pool dram:1MiB is full"),
        "{refused}"
    );
    let gone = client
        .refused(CatalogueRequest::GetMap { table: named("t") })
        .await;
    assert!(matches!(gone, Refusal::UnknownTable { .. }));
}

/// Everything that was answered is on disk: a copy of the files, taken while the member runs,
/// is what `kill -9` leaves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_member_comes_back_with_what_it_answered() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let cluster = catalogue.cluster();
    let client = site.dial(&catalogue, Role::Client, "c").await;
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    let (id, incarnation) = (node.node, node.incarnation);
    tokio::spawn(node.run(false));
    let before = client.map(create(1, "t")).await;
    let revision = client.revision().await;

    let copy = site.path.join("copy");
    std::fs::create_dir(&copy).unwrap();
    let file = "catalogue.redb";
    std::fs::copy(site.data().join(file), copy.join(file)).unwrap();
    // Without --init: the directory has its cluster. With it again below: harmless.
    let back = Catalogue::open(site.options(&copy, false)).await.unwrap();
    assert_eq!((back.cluster(), back.revision()), (cluster, revision));
    let client = site.dial(&back, Role::Client, "c").await;
    let after = client.table("t").await;
    assert_eq!(after, before);

    // A retry of the creation, and the node's next life, go on where they were (I-6).
    assert_eq!(client.map(create(1, "t")).await.table, before.table);
    let again = TestNode::enter(&site, &back, "n1").await;
    assert_eq!(again.node, id);
    assert!(again.incarnation > incarnation);
    assert_eq!(client.table("t").await.state, TableState::Lost);
    back.shutdown().await;
    let again = Catalogue::open(site.options(&copy, true)).await.unwrap();
    assert_eq!(again.cluster(), cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_is_cut_behind_snapshots_and_nothing_is_lost() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    let last = SNAPSHOT_EVERY_ENTRIES + 100;
    let mut newest = Generation(0);
    for _ in 0..last {
        let take = CatalogueRequest::TakeGenerations {
            node: node.node,
            incarnation: node.incarnation,
            count: 1,
        };
        match node.caller.ask(take).await {
            CatalogueResponse::Generations { first, .. } if first > newest => newest = first,
            other => panic!("{other:?} after {newest}"),
        }
    }
    let revision = catalogue.revision();
    catalogue.shutdown().await;

    let store = CatalogueStore::open(&site.data(), 1).unwrap();
    let log = LogStore::new(store).get_log_state().await.unwrap();
    assert!(log.last_purged_log_id.is_some(), "{log:?}");

    let catalogue = site.open(false).await;
    assert_eq!(catalogue.revision(), revision);
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    assert!(node.next > newest.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_are_founded_once_and_used_by_one() {
    let site = Site::new();
    let empty = Catalogue::open(site.options(&site.data(), false))
        .await
        .unwrap_err();
    assert!(matches!(empty, CatalogueOpenError::NotInitialised { .. }));
    assert!(empty.to_string().contains("--init"), "{empty}");

    let catalogue = site.open(true).await;
    let cluster = catalogue.cluster();
    let second = Catalogue::open(site.options(&site.data(), true))
        .await
        .unwrap_err();
    assert!(
        second.to_string().contains("in use by another process"),
        "{second}"
    );
    let mut other = site.options(&site.data(), true);
    catalogue.shutdown().await;
    other.id = 2;
    let other = Catalogue::open(other).await.unwrap_err();
    assert!(
        other.to_string().contains("belongs to catalogue member 1"),
        "{other}"
    );
    let catalogue = site.open(true).await;
    assert_eq!(catalogue.cluster(), cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_member_stops_and_lets_its_directory_go() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let client = site.dial(&catalogue, Role::Client, "c").await;
    let revision = client.revision().await;
    drop(catalogue);
    let deadline = Instant::now() + PATIENCE;
    let again = loop {
        match Catalogue::open(site.options(&site.data(), false)).await {
            Ok(again) => break again,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(again.revision(), revision);
    client.link.closed_for().await;
}

/// I-13: the certificate decides who speaks for a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_speaks_for_another_node() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let n1 = TestNode::enter(&site, &catalogue, "n1").await;
    let n2 = TestNode::enter(&site, &catalogue, "n2").await;
    let client = site.dial(&catalogue, Role::Client, "c").await;
    for caller in [&n2.caller, &client] {
        let refused = caller.refused(n1.heartbeat()).await;
        assert!(
            matches!(refused, Refusal::PermissionDenied { .. }),
            "{refused}"
        );
    }
    let refused = n2.caller.refused(create(1, "t")).await;
    assert!(
        matches!(refused, Refusal::PermissionDenied { .. }),
        "{refused}"
    );
    assert!(matches!(
        n1.caller.ask(n1.heartbeat()).await,
        CatalogueResponse::Alive { .. }
    ));
    // I-6: an old life is told to stop.
    let _newer = TestNode::enter(&site, &catalogue, "n1").await;
    let refused = n1.caller.refused(n1.heartbeat()).await;
    assert_eq!(refused, Refusal::StaleIncarnation { node: "n1".into() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_node_is_suspect_and_gets_no_shards() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let n1 = TestNode::enter(&site, &catalogue, "n1").await;
    let n2 = TestNode::enter(&site, &catalogue, "n2").await;
    let client = site.dial(&catalogue, Role::Client, "c").await;
    let lease_ms = NODE_LEASE.as_millis() as u64;
    site.clock_ms.fetch_add(lease_ms, Ordering::Relaxed);
    n1.caller.ask(n1.heartbeat()).await;
    let CatalogueResponse::Status(status) = client.ask(CatalogueRequest::Status).await else {
        panic!("no status");
    };
    let alive: Vec<_> = status
        .nodes
        .iter()
        .map(|n| (n.alive, n.silent_ms))
        .collect();
    assert_eq!(alive, [(true, 0), (false, lease_ms)]);
    assert_eq!(status.leader, 1);
    assert_eq!(status.members, [(1, catalogue.local_addr().to_string())]);

    let (n1_id, n2_id) = (n1.node, n2.node);
    tokio::spawn(n1.run(false));
    let map = client.map(create(1, "t")).await;
    assert!(map.nodes.iter().all(|n| n.node == n1_id && n.node != n2_id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_wait_and_are_woken() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let client = site.dial(&catalogue, Role::Client, "c").await;
    let from = client.revision().await;
    let watch = |from, wait_ms| CatalogueRequest::Watch { from, wait_ms };
    // Nothing happened: an empty answer when the wait is over.
    assert_eq!(
        client.ask(watch(from, 1)).await,
        CatalogueResponse::Changes {
            revision: from,
            changes: vec![]
        }
    );
    let ahead = Revision(from.0 + 100);
    assert!(matches!(
        client.ask(watch(ahead, 1)).await,
        CatalogueResponse::Compacted { .. }
    ));
    let (woken, node) = tokio::join!(
        client.ask(watch(from, 10_000)),
        TestNode::enter(&site, &catalogue, "n1")
    );
    let CatalogueResponse::Changes { revision, changes } = woken else {
        panic!("not woken: {woken:?}");
    };
    assert!(revision > from);
    assert_eq!(changes, [Change::Node(node.node)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_control_request_is_refused() {
    let site = Site::new();
    let catalogue = site.open(true).await;
    let client = site.dial(&catalogue, Role::Client, "c").await;
    let deadline = Instant::now() + PATIENCE;
    for (kind, body) in [
        (FrameKind::Pull, vec![]),
        (
            FrameKind::Control,
            vec![bytes::Bytes::from_static(&[7; 64])],
        ),
    ] {
        let answer = client.link.call(kind, 1, body, deadline).await.unwrap();
        assert_eq!(answer.kind, FrameKind::Refused);
        let refusal: Refusal = codec::decode(&answer.body.into_contiguous()).unwrap();
        assert!(matches!(refusal, Refusal::Malformed { .. }), "{refusal}");
    }
    client.revision().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_and_metrics_are_served_over_http() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let site = Site::new();
    let catalogue = site.open(true).await;
    let _node = TestNode::enter(&site, &catalogue, "n1").await;
    let get = async |path: &str| {
        let addr = catalogue.http_addr().unwrap();
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let health = get("/healthz").await;
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let metrics = get("/metrics").await;
    for line in [
        "mneme_catalogue_leads 1",
        "mneme_catalogue_nodes{state=\"alive\"} 1",
        "mneme_catalogue_requests_total{request=\"register\",outcome=\"ok\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    assert!(catalogue.health().is_ok());
}
