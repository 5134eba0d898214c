//! What addresses do, in tables, laws, every order and many bad days.

mod scaling;
