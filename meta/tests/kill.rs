//! `kill -9` of a member's process, again and again over one directory: what it answered is there.

// A panic in starting or killing is a failed test.
#![allow(clippy::unwrap_used)]

mod fixture;
mod site;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use mneme_meta::Catalogue;
use mneme_proto::control::{CatalogueRequest, CatalogueResponse};
use mneme_proto::ids::Generation;
use site::{Site, TestNode};

const SITE: &str = "MNEME_TEST_KILL_SITE";

/// Answers seen before each kill: different moments between two commits of the store.
const ANSWERS: [usize; 4] = [1, 37, 60, 83];

async fn open(site: &Site) -> Catalogue {
    Catalogue::open(site.options(&site.data(), true))
        .await
        .expect("the directory opens again")
}

/// The process that is killed: takes generations and prints each when it is answered.
#[ignore = "started by the test below"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_process() {
    let path = PathBuf::from(std::env::var_os(SITE).expect("the parent names the site"));
    let site = Site::at(&path);
    let catalogue = open(&site).await;
    let node = TestNode::enter(&site, &catalogue, "n1").await;
    let mut out = std::io::stdout();
    loop {
        let take = CatalogueRequest::TakeGenerations {
            node: node.node,
            incarnation: node.incarnation,
            count: 1,
        };
        let CatalogueResponse::Generations { first, .. } = node.caller.ask(take).await else {
            panic!("no generations");
        };
        writeln!(out, "\ntook {first}").unwrap();
    }
}

fn start(path: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "member_process", "--ignored", "--nocapture"])
        .env(SITE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The last generation of `answers` that the process printed, and its end.
fn kill_after(mut child: Child, answers: usize) -> Generation {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let taken = lines.map_while(Result::ok).filter_map(|line| {
        let number = line.strip_prefix("took ")?;
        Some(Generation(number.parse().unwrap()))
    });
    let last = taken.take(answers).last();
    child.kill().unwrap();
    child.wait().unwrap();
    last.expect("the process answered before it was killed")
}

/// I-6: no generation that was answered before a kill is given again after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_answered_survives_kill_9() {
    let dir = tempfile::tempdir().unwrap();
    Site::make(dir.path());
    let mut clusters = Vec::new();
    for answers in ANSWERS {
        let path = dir.path().to_path_buf();
        let killed = tokio::task::spawn_blocking(move || kill_after(start(&path), answers));
        let last = killed.await.unwrap();
        let site = Site::at(dir.path());
        let catalogue = open(&site).await;
        clusters.push(catalogue.cluster());
        let node = TestNode::enter(&site, &catalogue, "n1").await;
        assert!(node.next > last.0, "{} was given after {last}", node.next);
        catalogue.shutdown().await;
    }
    clusters.dedup();
    assert_eq!(
        clusters.len(),
        1,
        "the cluster is the same after every kill"
    );
}
