package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/deferlock/deferlock/lock"
)

func ExampleLocker_Acquire() {
	server, err := miniredis.Run() // in production, your Redis
	if err != nil {
		log.Fatal(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer rdb.Close()

	locks, err := lock.New(rdb, lock.Config{Name: "accounts"})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()

	lease, err := locks.Acquire(ctx, "account:42")
	if err != nil {
		log.Fatal(err)
	}

	// Whoever comes second hears of it at once.
	var held *lock.HeldError
	if _, err := locks.Acquire(ctx, "account:42"); errors.As(err, &held) {
		fmt.Println(held.Resource, "is held:", held.For > 0)
	}

	// The work runs under the lease's context, and gives the database the fence.
	work(lease.Context(), lease.Fence())
	if err := lease.Release(ctx); err != nil {
		log.Print(err) // it ends by itself after Config.TTL
	}
	fmt.Println("lost:", errors.Is(context.Cause(lease.Context()), lock.ErrLost))
	// Output:
	// account:42 is held: true
	// working, with a fence: true
	// lost: false
}

func work(ctx context.Context, fence int64) {
	fmt.Println("working, with a fence:", ctx.Err() == nil && fence > 0)
}
