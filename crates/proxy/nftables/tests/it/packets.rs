//! Real packets through the table.
