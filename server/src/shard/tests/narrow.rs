//! Rows narrower than f32 in the shard core.

use super::*;
use mneme_proto::numeric::of_bf16;
use mneme_proto::schema::Rounding;

fn narrow(dtype: Dtype, dim: u32, optimizer: Optimizer) -> TableSpec {
    TableSpec {
        schema: RowSchema::single(dtype, dim),
        ..table(dim, optimizer)
    }
}

impl Bench {
    /// The stored bytes of a row.
    fn stored(&self, key: u64) -> &[u8] {
        &self.shard.rows().all()[&key].0
    }

    /// One gradient of -1/1000 under a sequence, on a row of bf16 ones.
    fn nudge(&mut self, sequence: u64, key: u64, dim: usize) -> Vec<u8> {
        let ones = [0x80, 0x3F].repeat(dim);
        let assigned = self.deliver(sequence, PushMode::Assign, &[key], &ones);
        applied(&assigned.expect("ordered"));
        let gradient = bytes(&vec![1e-3; dim]);
        let pushed = self.deliver(sequence + 1, PushMode::Gradient, &[key], &gradient);
        applied(&pushed.expect("ordered"));
        self.stored(key).to_vec()
    }
}

/// I-10: what stochastic rounding does is a function of seed, table, key, push and lane.
#[test]
fn stochastic_rounding_repeats_and_differs() {
    const DIM: usize = 64;
    let spec = TableSpec {
        rounding: Rounding::Stochastic,
        ..narrow(Dtype::Bf16, DIM as u32, sgd(1.0))
    };
    let once = Bench::new(&spec).nudge(1, 5, DIM);
    assert_eq!(once, Bench::new(&spec).nudge(1, 5, DIM));
    let mut again = Bench::new(&spec);
    again.nudge(1, 5, DIM);
    assert_ne!(once, again.nudge(3, 5, DIM), "another push");
    assert_ne!(once, Bench::new(&spec).nudge(1, 6, DIM), "another key");
    let seeded = TableSpec { seed: 2, ..spec };
    assert_ne!(once, Bench::new(&seeded).nudge(1, 5, DIM), "another seed");
    let values = once.as_chunks::<2>().0.iter();
    let values: Vec<f32> = values.map(|b| of_bf16(u16::from_le_bytes(*b))).collect();
    assert!(values.iter().all(|v| [1.0, 0.996_093_75].contains(v)));
    assert!(values.iter().any(|v| *v != values[0]), "all lanes alike");
}

/// The master copy takes every update, the row is what it rounds to; both follow an assign, and
/// a new row has both.
#[test]
fn a_master_copy_stands_behind_the_state() {
    let adagrad = Optimizer::Adagrad {
        lr: 1e-3,
        eps: 1e-10,
        acc0: 0.0,
    };
    let init = Initializer::Constant(0.1);
    let mut t = Bench::new(&TableSpec {
        master: true,
        init,
        ..narrow(Dtype::F8e4m3, 1, adagrad)
    });
    t.push(PushMode::Gradient, &[1], &[0.0; 1]);
    // 0/(0 + eps) moved nothing: the master copy is the initializer's, unrounded.
    assert_eq!(t.state(1), [0.0, 0.1]);
    assert_eq!(t.stored(1), [0x1D]);
    t.sequence += 1;
    let assigned = t.deliver(t.sequence, PushMode::Assign, &[1], &[0x38]);
    applied(&assigned.expect("ordered"));
    assert_eq!((t.state(1)[1], t.stored(1)), (1.0, &[0x38][..]));
    t.push(PushMode::Gradient, &[1], &[1.0]);
    assert!((t.state(1)[1] - 0.999).abs() < 1e-6);
    assert_eq!(t.stored(1), [0x38], "too small for the row");
    t.push(PushMode::Add, &[1], &[-0.499]);
    assert_eq!(t.stored(1), [0x30]);
}

/// A part whose second result does not fit its dtype applies nothing.
#[test]
fn a_result_that_does_not_fit_refuses_the_part() {
    let mut t = Bench::new(&narrow(Dtype::F16, 1, sgd(1.0)));
    let assigned = t.deliver(1, PushMode::Assign, &[1, 2], &[0, 0x3C, 0xFF, 0x7B]);
    applied(&assigned.expect("ordered"));
    t.sequence = 1;
    for mode in [PushMode::Gradient, PushMode::Add] {
        let sign = if mode == PushMode::Add { 1.0 } else { -1.0 };
        let refusal = refused(t.push(mode, &[1, 2], &[sign, sign * 20.0]));
        assert!(
            matches!(refusal, Refusal::NonFinite { key: 2, .. }),
            "{refusal}"
        );
        assert_eq!(
            (t.stored(1), t.stored(2)),
            (&[0, 0x3C][..], &[0xFF, 0x7B][..])
        );
    }
}
