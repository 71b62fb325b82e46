-- The database of the catalog, beside Airflow's, and its owner.
\set password `cat /run/secrets/catalog_password`
CREATE ROLE memwal LOGIN PASSWORD :'password';
CREATE DATABASE memwal OWNER memwal;
