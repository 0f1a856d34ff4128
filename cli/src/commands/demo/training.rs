//! The demo's third part: a recommender in small, trained with adagrad on the nodes.
//!
//! Users and items have hidden factors; what is seen is how much a user likes an item, their
//! product. The table learns factors of its own that explain it (matrix factorisation): pull the
//! rows of a batch, push their gradients, and the nodes take the optimizer's steps.

use anyhow::bail;
use mneme_client::blocking::Client;
use mneme_client::{PullOptions, PushOptions};
use mneme_proto::frame::{Missing, PushMode};
use mneme_proto::mix64::mix64;
use mneme_proto::schema::{Dtype, Initializer, Optimizer, RowSchema, TableKind, TableSpec};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::{Line, Timed, say};
use crate::commands::Session;

const TABLE: &str = "factors";
const DIM: usize = 8;
const USERS: u64 = 500;
const ITEMS: u64 = 200;

/// Pairs of a step.
const BATCH: usize = 1024;
const STEPS: usize = 300;

/// How often the loss is told.
const SHOWN_EVERY: usize = 60;

/// Training learns if the loss falls below this part of what it was at first.
const LEARNT: f64 = 0.1;

pub(super) struct Trained {
    pub(super) loss_first: f64,
    pub(super) loss_last: f64,
    pub(super) line: Line,
}

pub(super) fn show(session: &Session, client: &Client) -> anyhow::Result<Trained> {
    let table = client.create_table(spec(&client.config().tenant))?;
    let mut rng = StdRng::seed_from_u64(7);
    let pull = PullOptions::missing(Missing::Init);
    let mut rows = vec![0.0; 2 * BATCH * DIM];
    let mut gradients = vec![0.0; 2 * BATCH * DIM];
    let mut timed = Timed::new();
    let mut losses = Vec::with_capacity(STEPS);
    for step in 0..STEPS {
        let pairs: Vec<(u64, u64)> = (0..BATCH)
            .map(|_| (rng.random_range(0..USERS), rng.random_range(0..ITEMS)))
            .collect();
        let users = pairs.iter().map(|&(user, _)| user_key(user));
        let keys: Vec<u64> = users
            .chain(pairs.iter().map(|&(_, item)| item_key(item)))
            .collect();
        table.pull_f32(&keys, &mut rows, &pull)?;
        losses.push(backward(&pairs, &rows, &mut gradients));
        timed.call(|| {
            table.push(
                PushMode::Gradient,
                &keys,
                &gradients,
                &PushOptions::default(),
            )
        })?;
        if step % SHOWN_EVERY == 0 || step + 1 == STEPS {
            say(
                session,
                format!("training step {step:>3}: loss {:.4}", losses[step]),
            );
        }
    }
    let (loss_first, loss_last) = (losses[0], losses[STEPS - 1]);
    if loss_last.is_nan() || loss_last > loss_first * LEARNT {
        bail!("training table '{TABLE}' did not learn: loss {loss_first} became {loss_last}");
    }
    let what = format!("push {} gradients of {DIM} f32, adagrad", 2 * BATCH);
    Ok(Trained {
        loss_first,
        loss_last,
        line: timed.line(what, 2 * BATCH, DIM * 4),
    })
}

fn spec(tenant: &str) -> TableSpec {
    TableSpec {
        tenant: tenant.into(),
        optimizer: Optimizer::Adagrad {
            lr: 0.3,
            eps: 1e-10,
            acc0: 0.0,
        },
        init: Initializer::Normal {
            mean: 0.0,
            std: 0.3,
        },
        ..TableSpec::new(
            TABLE,
            TableKind::Hashed,
            RowSchema::single(Dtype::F32, DIM as u32),
        )
    }
}

fn user_key(user: u64) -> u64 {
    mix64(user)
}

fn item_key(item: u64) -> u64 {
    mix64(item | 1 << 63)
}

/// A hidden factor of a key, between -1 and 1.
fn hidden(key: u64, at: usize) -> f32 {
    let bits = mix64(key ^ (at as u64 + 1)) >> 40;
    bits as f32 / (1u64 << 23) as f32 - 1.0
}

/// The gradients of half the squared error of every pair, divided by what a key may expect of a
/// batch; the mean squared error.
fn backward(pairs: &[(u64, u64)], rows: &[f32], gradients: &mut [f32]) -> f64 {
    let (users, items) = rows.split_at(pairs.len() * DIM);
    let (user_gradients, item_gradients) = gradients.split_at_mut(pairs.len() * DIM);
    let mut loss = 0.0;
    for (at, &(user, item)) in pairs.iter().enumerate() {
        let span = at * DIM..(at + 1) * DIM;
        let (u, i) = (&users[span.clone()], &items[span.clone()]);
        let seen: f32 = (0..DIM)
            .map(|d| hidden(user_key(user), d) * hidden(item_key(item), d))
            .sum();
        let said: f32 = u.iter().zip(i).map(|(a, b)| a * b).sum();
        let error = said - seen;
        loss += f64::from(error * error);
        for d in 0..DIM {
            user_gradients[span.start + d] = error * i[d];
            item_gradients[span.start + d] = error * u[d];
        }
    }
    loss / pairs.len() as f64
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// The task itself is learnable with these settings, without any cluster.
    #[test]
    fn the_task_is_learnt_by_plain_adagrad() {
        let mut rng = StdRng::seed_from_u64(7);
        let mut table: HashMap<u64, ([f32; DIM], [f32; DIM])> = HashMap::new();
        let mut losses = Vec::new();
        for _ in 0..STEPS {
            let pairs: Vec<(u64, u64)> = (0..BATCH)
                .map(|_| (rng.random_range(0..USERS), rng.random_range(0..ITEMS)))
                .collect();
            let users = pairs.iter().map(|&(user, _)| user_key(user));
            let items = pairs.iter().map(|&(_, item)| item_key(item));
            let keys: Vec<u64> = users.chain(items).collect();
            let init = |key: u64| (std::array::from_fn(|d| 0.5 * hidden(!key, d)), [0.0; DIM]);
            let rows: Vec<f32> = keys
                .iter()
                .flat_map(|&key| table.entry(key).or_insert_with(|| init(key)).0)
                .collect();
            let mut gradients = vec![0.0; rows.len()];
            losses.push(backward(&pairs, &rows, &mut gradients));
            let mut sums: HashMap<u64, [f32; DIM]> = HashMap::new();
            for (key, gradient) in keys.iter().zip(gradients.chunks_exact(DIM)) {
                let sum = sums.entry(*key).or_default();
                sum.iter_mut().zip(gradient).for_each(|(s, g)| *s += g);
            }
            for (key, sum) in sums {
                let (row, acc) = table.get_mut(&key).expect("pulled before");
                for d in 0..DIM {
                    acc[d] += sum[d] * sum[d];
                    row[d] -= 0.3 * sum[d] / (acc[d].sqrt() + 1e-10);
                }
            }
        }
        let (first, last) = (losses[0], losses[STEPS - 1]);
        assert!(last < first * LEARNT / 2.0, "{first} became {last}");
    }
}
