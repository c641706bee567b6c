// Go with pgxpool: so many goroutines over so many connections. Prints how many jobs a second it did.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v4/pgxpool"
)

const pick = "select value from bench where id = $1"

var key = 7

func statement(ctx context.Context, pool *pgxpool.Pool) error {
	var value int
	return pool.QueryRow(ctx, "select 1").Scan(&value)
}

func transaction(ctx context.Context, pool *pgxpool.Pool) error {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	for i := 0; i < 2; i++ {
		var value int
		if err := tx.QueryRow(ctx, pick, key).Scan(&value); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

func main() {
	tasks, _ := strconv.Atoi(os.Args[2])
	connections, _ := strconv.Atoi(os.Args[3])
	seconds, _ := strconv.ParseFloat(os.Args[4], 64)
	job := statement
	if os.Args[1] == "transactions" {
		job = transaction
	}
	ctx := context.Background()
	config, err := pgxpool.ParseConfig("sslmode=disable") // the rest is in the environment
	if err != nil {
		panic(err)
	}
	config.MinConns, config.MaxConns = int32(connections), int32(connections)
	pool, err := pgxpool.ConnectConfig(ctx, config)
	if err != nil {
		panic(err)
	}
	run := func(seconds float64) float64 {
		var done int64
		var group sync.WaitGroup
		began := time.Now()
		end := began.Add(time.Duration(seconds * float64(time.Second)))
		for i := 0; i < tasks; i++ {
			group.Add(1)
			go func() {
				defer group.Done()
				for time.Now().Before(end) {
					if err := job(ctx, pool); err != nil {
						panic(err)
					}
					atomic.AddInt64(&done, 1)
				}
			}()
		}
		group.Wait()
		return float64(done) / time.Since(began).Seconds()
	}
	run(seconds / 4)
	fmt.Println(run(seconds))
}
