//! The exact cases (`B001` ...) through a running server and the public client. Each names the
//! fault that users of other systems met; the values are computed independently of this code.

mod batches;
mod concurrency;
mod formats;
mod golden;
mod keys;
mod missing;
mod optimizers;
mod planes;
mod rules;
