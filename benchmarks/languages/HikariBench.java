// Java with HikariCP and JDBC: so many threads over so many connections. Prints how many jobs a second it did.

import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

public class HikariBench {
    static final String PICK = "select value from bench where id = ?";
    static final int KEY = 7;

    static void pick(Connection connection) throws Exception {
        try (PreparedStatement statement = connection.prepareStatement(PICK)) {
            statement.setInt(1, KEY);
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                rows.getInt(1);
            }
        }
    }

    static void selectOne(Connection connection) throws Exception {
        try (PreparedStatement statement = connection.prepareStatement("select 1");
                ResultSet rows = statement.executeQuery()) {
            rows.next();
            rows.getInt(1);
        }
    }

    static void work(HikariDataSource pool, boolean transaction) throws Exception {
        try (Connection connection = pool.getConnection()) {
            if (!transaction) {
                selectOne(connection);
                return;
            }
            connection.setAutoCommit(false);
            pick(connection);
            pick(connection);
            connection.commit();
        }
    }

    static double run(HikariDataSource pool, boolean transaction, int tasks, double seconds) throws Exception {
        AtomicLong done = new AtomicLong();
        AtomicReference<Exception> failure = new AtomicReference<>();
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
        Thread[] threads = new Thread[tasks];
        for (int i = 0; i < tasks; i++) {
            threads[i] = new Thread(() -> {
                try {
                    while (System.nanoTime() < end) {
                        work(pool, transaction);
                        done.incrementAndGet();
                    }
                } catch (Exception error) {
                    failure.set(error);
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return done.get() / ((System.nanoTime() - began) / 1e9);
    }

    public static void main(String[] given) throws Exception {
        boolean transaction = given[0].equals("transactions");
        int tasks = Integer.parseInt(given[1]), connections = Integer.parseInt(given[2]);
        double seconds = Double.parseDouble(given[3]);
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl("jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT") + "/"
                + System.getenv("PGDATABASE"));
        config.setUsername(System.getenv("PGUSER"));
        config.setPassword(System.getenv("PGPASSWORD"));
        config.setMinimumIdle(connections);
        config.setMaximumPoolSize(connections);
        try (HikariDataSource pool = new HikariDataSource(config)) {
            run(pool, transaction, tasks, seconds); // the compiler of the virtual machine needs a while
            System.out.println(run(pool, transaction, tasks, seconds));
        }
    }
}
