-- The table of the route payments. mqb makes its own table, mqb_checkpoints.
CREATE TABLE payments (
    id     bigint PRIMARY KEY,
    amount numeric NOT NULL
);
