//! Every request that there is, from a principal that may everything with one table and nothing
//! with another: of the other it reaches nothing, and nothing of it is changed.

use std::time::{Duration, Instant};

use mneme_net::{CatalogueError, CatalogueLink, Endpoint, Identity, Link, LinkOptions, Role};
use mneme_proto::codec::{decode, encode_bytes};
use mneme_proto::control::{
    CatalogueRequest, CatalogueResponse, Change, NodeRegistration, NodeRequest, TableRef,
};
use mneme_proto::frame::{
    FrameKind, LoadHeader, Missing, PullGroup, PullHeader, PushHeader, PushMode, PushPart,
};
use mneme_proto::grant::Level;
use mneme_proto::ids::{
    Epoch, Incarnation, NodeId, Revision, SessionId, ShardIndex, TableGeneration, TableId,
};
use mneme_proto::refusal::Refusal;
use mneme_proto::schema::TableSpec;
use mneme_tests::Trio;
use mneme_tests::rows::{Rows, hashed, sgd};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

const PATIENCE: Duration = Duration::from_secs(20);
const GENERATION: TableGeneration = TableGeneration(1);
const SHARD: ShardIndex = ShardIndex(0);
const NODE: NodeId = NodeId(1);
const INCARNATION: Incarnation = Incarnation(1);

/// A list with one sample of every variant: a variant without a line does not compile.
macro_rules! every {
    ($make:ident($of:ident: &$target:ty) -> $request:ty { $($variant:pat => $sample:expr,)* }) => {
        fn $make($of: &$target) -> Vec<$request> {
            let named = |request: &$request| match request {
                $($variant => (),)*
            };
            let samples = vec![$($sample),*];
            samples.iter().for_each(named);
            let mut kinds = samples.iter();
            $(assert!(matches!(kinds.next(), Some($variant))));*;
            samples
        }
    };
}

/// A table as a request names it.
struct Target {
    table: TableRef,
    id: TableId,
    spec: TableSpec,
}

every!(catalogue_requests(of: &Target) -> CatalogueRequest {
    CatalogueRequest::Hello => CatalogueRequest::Hello,
    CatalogueRequest::Register(_) => CatalogueRequest::Register(NodeRegistration {
        name: "n1".into(),
        address: "127.0.0.1:1".into(),
        domain: String::new(),
        pools: vec![],
        held: vec![],
    }),
    CatalogueRequest::Heartbeat { .. } => CatalogueRequest::Heartbeat {
        node: NODE,
        incarnation: INCARNATION,
        pools: vec![],
    },
    CatalogueRequest::Report { .. } => CatalogueRequest::Report {
        node: NODE,
        incarnation: INCARNATION,
        shards: vec![],
    },
    CatalogueRequest::TakeGenerations { .. } => CatalogueRequest::TakeGenerations {
        node: NODE,
        incarnation: INCARNATION,
        count: 1,
    },
    CatalogueRequest::NodeTables { .. } => CatalogueRequest::NodeTables { node: NODE },
    CatalogueRequest::CreateTable { .. } => CatalogueRequest::CreateTable {
        request: 77,
        spec: of.spec.clone(),
        loading: false,
    },
    CatalogueRequest::DropTable { .. } => CatalogueRequest::DropTable { table: of.table.clone() },
    CatalogueRequest::ResetTable { .. } => CatalogueRequest::ResetTable { table: of.table.clone() },
    CatalogueRequest::BeginLoad { .. } => CatalogueRequest::BeginLoad { table: of.table.clone() },
    CatalogueRequest::Publish { .. } => CatalogueRequest::Publish {
        table: of.id,
        generation: GENERATION,
        replicas: vec![],
    },
    CatalogueRequest::ListTables => CatalogueRequest::ListTables,
    CatalogueRequest::GetMap { .. } => CatalogueRequest::GetMap { table: of.table.clone() },
    CatalogueRequest::Watch { .. } => CatalogueRequest::Watch { from: Revision(0), wait_ms: 1 },
    CatalogueRequest::Status => CatalogueRequest::Status,
    CatalogueRequest::Versions { .. } => CatalogueRequest::Versions { table: of.table.clone() },
    CatalogueRequest::SetTable { .. } => CatalogueRequest::SetTable {
        table: of.table.clone(),
        options: vec![("lr".into(), "0.25".into())],
    },
    CatalogueRequest::Grant { .. } => CatalogueRequest::Grant {
        table: of.table.clone(),
        principal: "ann".into(),
        level: Some(Level::Admin),
    },
    CatalogueRequest::Grants { .. } => CatalogueRequest::Grants { table: of.table.clone() },
});

every!(node_requests(of: &Target) -> NodeRequest {
    NodeRequest::OpenSessions { .. } => NodeRequest::OpenSessions {
        table: of.id,
        shards: vec![(SHARD, Epoch(1))],
    },
    NodeRequest::VoidSequence { .. } => NodeRequest::VoidSequence {
        table: of.id,
        shard: SHARD,
        session: SessionId(1),
        sequence: 1,
    },
    NodeRequest::BeginLoad { .. } => NodeRequest::BeginLoad {
        table: of.id,
        generation: GENERATION,
        shards: vec![(SHARD, 1)],
    },
    NodeRequest::FinishLoad { .. } => NodeRequest::FinishLoad {
        table: of.id,
        generation: GENERATION,
    },
    NodeRequest::AbandonLoad { .. } => NodeRequest::AbandonLoad {
        table: of.id,
        generation: GENERATION,
    },
    NodeRequest::SealShards { .. } => NodeRequest::SealShards {
        table: of.id,
        generation: GENERATION,
    },
    NodeRequest::Scan { .. } => NodeRequest::Scan {
        table: of.id,
        shard: SHARD,
        generation: TableGeneration(0),
        cursor: 0,
        rows_max: 10,
    },
    NodeRequest::Describe { .. } => NodeRequest::Describe { table: of.id },
});

/// Every kind of frame to a node. A kind without an arm does not compile.
fn frames(of: &Target) -> Vec<(FrameKind, Vec<u8>)> {
    let kinds = [
        FrameKind::Pull,
        FrameKind::Pulled,
        FrameKind::Push,
        FrameKind::Pushed,
        FrameKind::Load,
        FrameKind::Control,
        FrameKind::Refused,
    ];
    let bodies = |kind: FrameKind| match kind {
        FrameKind::Pull => [Missing::Default, Missing::Error, Missing::Init]
            .map(|missing| pull_body(of, missing))
            .to_vec(),
        FrameKind::Push => [PushMode::Assign, PushMode::Gradient, PushMode::Delete]
            .map(|mode| push_body(of, mode))
            .to_vec(),
        FrameKind::Load => vec![load_body(of)],
        FrameKind::Control => {
            let requests = node_requests(of);
            requests.iter().map(|r| encode_bytes(r).to_vec()).collect()
        }
        // Answers: no node takes them, whatever they hold.
        FrameKind::Pulled | FrameKind::Pushed | FrameKind::Refused => vec![vec![0; 64]],
    };
    let all = kinds.into_iter();
    all.flat_map(|kind| bodies(kind).into_iter().map(move |body| (kind, body)))
        .collect()
}

fn pull_body(of: &Target, missing: Missing) -> Vec<u8> {
    let header = PullHeader {
        table: of.id.0.into(),
        generation: 0.into(),
        groups: 1.into(),
        keys: 1.into(),
        missing: missing as u8,
        flags: 0,
        reserved: [0; 6],
    };
    let group = PullGroup {
        shard: 0.into(),
        keys: 1.into(),
        epoch: 1.into(),
    };
    [header.as_bytes(), group.as_bytes(), U64::new(1).as_bytes()].concat()
}

fn push_body(of: &Target, mode: PushMode) -> Vec<u8> {
    let value_bytes = if mode == PushMode::Delete { 0 } else { 16 };
    let header = PushHeader {
        table: of.id.0.into(),
        step: 0.into(),
        parts: 1.into(),
        keys: 1.into(),
        value_bytes: value_bytes.into(),
        mode: mode as u8,
        reserved: [0; 3],
    };
    let part = PushPart {
        shard: 0.into(),
        keys: 1.into(),
        epoch: 1.into(),
        session: 1.into(),
        sequence: 1.into(),
    };
    let key = U64::new(1);
    let values = vec![0; value_bytes as usize];
    [header.as_bytes(), part.as_bytes(), key.as_bytes(), &values].concat()
}

fn load_body(of: &Target) -> Vec<u8> {
    let header = LoadHeader {
        table: of.id.0.into(),
        generation: GENERATION.0.into(),
        first: 0.into(),
        shard: 0.into(),
        rows: 1.into(),
        keyed: 1,
        reserved: [0; 7],
    };
    [header.as_bytes(), U64::new(1).as_bytes(), &[0; 16]].concat()
}

/// Whether an answer of the catalogue holds nothing of the table.
fn tells_nothing(request: &CatalogueRequest, answer: &CatalogueResponse, of: &Target) -> bool {
    match answer {
        // That its name is taken is all that a creator learns.
        CatalogueResponse::Refused(Refusal::TableExists { .. }) => {
            matches!(request, CatalogueRequest::CreateTable { .. })
        }
        CatalogueResponse::Refused(refusal) => denies(refusal),
        CatalogueResponse::Hello { .. } => true,
        CatalogueResponse::Tables(tables) => tables.iter().all(|t| t.table != of.id),
        CatalogueResponse::Status(status) => status.tables.iter().all(|t| t.table != of.id),
        CatalogueResponse::Changes { changes, .. } => changes
            .iter()
            .all(|c| !matches!(c, Change::Table(id) | Change::Dropped(id) if *id == of.id)),
        _ => false,
    }
}

fn denies(refusal: &Refusal) -> bool {
    matches!(
        refusal,
        Refusal::NotPermitted { has: None, .. } | Refusal::PermissionDenied { .. }
    )
}

/// What `ann` uses to talk without a client library between.
struct Ann {
    runtime: tokio::runtime::Runtime,
    endpoint: Endpoint,
    catalogue: CatalogueLink,
}

impl Ann {
    fn new(trio: &Trio) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let identity = Identity::load(&trio.folder().join("certs/ann")).expect("a certificate");
        let _inside = runtime.enter();
        let endpoint = Endpoint::dialer(identity, LinkOptions::default()).expect("a socket");
        let seeds = vec![trio.catalogue().parse().expect("an address")];
        let catalogue = CatalogueLink::new(endpoint.clone(), seeds);
        drop(_inside);
        Self {
            runtime,
            endpoint,
            catalogue,
        }
    }

    fn ask(&self, request: CatalogueRequest) -> CatalogueResponse {
        let asked = self.catalogue.ask(request, Instant::now() + PATIENCE);
        match self.runtime.block_on(asked) {
            Ok(answer) => answer,
            Err(CatalogueError::Refused(refusal)) => CatalogueResponse::Refused(refusal),
            Err(error) => panic!("{error}"),
        }
    }

    fn node(&self, trio: &Trio, index: usize) -> Link {
        let addr = trio.address(index).parse().expect("an address");
        let deadline = Instant::now() + PATIENCE;
        let link = self.endpoint.connect(addr, Role::Node, deadline);
        self.runtime.block_on(link).expect("a node")
    }

    /// The refusal of a frame, if it is refused as a whole.
    fn refusal(&self, node: &Link, kind: FrameKind, body: Vec<u8>) -> Option<Refusal> {
        let call = node.call(kind, 1, vec![body.into()], Instant::now() + PATIENCE);
        let answer = self.runtime.block_on(call).expect("an answer");
        (answer.kind == FrameKind::Refused)
            .then(|| decode(&answer.body.into_contiguous()).expect("a refusal"))
    }
}

fn targets(spec: &TableSpec, id: TableId) -> [Target; 2] {
    let name = TableRef::Name {
        tenant: spec.tenant.clone(),
        name: spec.name.clone(),
    };
    [name, TableRef::Id(id)].map(|table| Target {
        table,
        id,
        spec: spec.clone(),
    })
}

/// I-13: with all there is on `a`, no request reaches anything of `b`.
#[test]
fn a_grant_on_one_table_reaches_nothing_of_another() {
    let trio = Trio::start();
    let client = trio.client();
    let a = Rows::create(&client, hashed("a", 4, sgd(1.0)));
    let b = Rows::create(&client, hashed("b", 4, sgd(1.0)));
    let keys: Vec<u64> = (0..100).collect();
    a.assign(&keys, &[1.0; 400]);
    b.assign(&keys, &[2.0; 400]);
    let _config = trio.principal("ann");
    trio.mneme().ok(&["grant", "a", "ann", "admin"]);
    let before = trio.mneme().json(&["table", "describe", "b"]);

    let ann = Ann::new(&trio);
    let links = [0, 1].map(|index| ann.node(&trio, index));
    for of in targets(&b.table.spec(), b.table.id()) {
        for request in catalogue_requests(&of) {
            let answer = ann.ask(request.clone());
            assert!(
                tells_nothing(&request, &answer, &of),
                "{request:?}: {answer:?}"
            );
        }
        for node in &links {
            for (kind, body) in frames(&of) {
                let refusal = ann.refusal(node, kind, body.clone());
                let refusal = refusal.unwrap_or_else(|| panic!("{kind:?} {body:?} is answered"));
                let asks = !matches!(
                    kind,
                    FrameKind::Pulled | FrameKind::Pushed | FrameKind::Refused
                );
                assert!(!asks || denies(&refusal), "{kind:?} {body:?}: {refusal}");
                assert!(!refusal.to_string().contains("'b'"), "{refusal}");
            }
        }
    }
    assert_eq!(b.pull(&keys), [2.0; 400]);
    assert_eq!(trio.mneme().json(&["table", "describe", "b"]), before);

    // The same requests are understood: of the table that is granted they are not denied.
    let of = &targets(&a.table.spec(), a.table.id())[1];
    for request in [
        CatalogueRequest::GetMap {
            table: of.table.clone(),
        },
        CatalogueRequest::Grants {
            table: of.table.clone(),
        },
    ] {
        let answer = ann.ask(request.clone());
        assert!(
            !tells_nothing(&request, &answer, of),
            "{request:?}: {answer:?}"
        );
    }
    let describe = encode_bytes(&NodeRequest::Describe { table: of.id }).to_vec();
    assert_eq!(ann.refusal(&links[0], FrameKind::Control, describe), None);
}
