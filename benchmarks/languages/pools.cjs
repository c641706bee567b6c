// Node with postgres.js, which pipelines, or with pg: so many loops over so many connections. Prints how many jobs a
// second it did. The packages are where NODE_PATH says, and the server is in the environment.

const [library, kind, ...numbers] = process.argv.slice(2);
const [tasks, connections, seconds] = numbers.map(Number);
const text = "select value from bench where id = $1";
const key = 7;

function postgres() {
  const sql = require("postgres")({ max: connections });
  const pick = (on) => on`select value from bench where id = ${key}`;
  return {
    statement: () => sql`select 1`,
    transaction: () => sql.begin(async (tx) => [await pick(tx), await pick(tx)]),
    close: () => sql.end(),
  };
}

function pg() {
  const pool = new (require("pg").Pool)({ max: connections });
  const pick = (on) => on.query({ name: "pick", text, values: [key] });
  return {
    statement: () => pool.query({ name: "one", text: "select 1" }),
    transaction: async () => {
      const client = await pool.connect();
      try {
        await client.query("begin");
        await pick(client);
        await pick(client);
        await client.query("commit");
      } finally {
        client.release();
      }
    },
    close: () => pool.end(),
  };
}

async function run(job, limit) {
  let done = 0;
  const began = performance.now();
  const end = began + limit * 1000;
  const loop = async () => {
    while (performance.now() < end) {
      await job();
      done++;
    }
  };
  await Promise.all(Array.from({ length: tasks }, loop));
  return (done / (performance.now() - began)) * 1000;
}

async function main() {
  const made = library === "pg" ? pg() : postgres();
  const job = kind === "transactions" ? made.transaction : made.statement;
  await run(job, seconds / 4);
  console.log(await run(job, seconds));
  await made.close();
}

main();
