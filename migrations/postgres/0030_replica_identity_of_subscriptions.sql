-- The only table without a primary key. While a publication has all tables, such as for an upgrade of the server by logical
-- replication, PostgreSQL refuses to delete or change rows of a table without a replica identity. It then refuses to end
-- sessions too, because their subscriptions end with them.

ALTER TABLE subscriptions REPLICA IDENTITY FULL;
