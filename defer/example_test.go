package deferral_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
)

// startRedis stands for the Redis you have. Its clock moves only by later, so
// that the examples need not wait.
func startRedis() (rdb *redis.Client, later func(time.Duration), stop func()) {
	m, err := miniredis.Run()
	if err != nil {
		log.Fatal(err)
	}
	now := time.Now()
	m.SetTime(now)
	m.ClockTTL(true)
	later = func(d time.Duration) {
		now = now.Add(d + time.Millisecond)
		m.SetTime(now)
	}
	rdb = redis.NewClient(&redis.Options{Addr: m.Addr()})
	return rdb, later, func() {
		_ = rdb.Close()
		m.Close()
	}
}

// A kaito queue: writes are put aside, and each call of Pop takes up to so many
// of those that were put aside at least so long ago. Two processes that pop at
// once never get the same write.
func ExampleQueue_Pop() {
	rdb, later, stop := startRedis()
	defer stop()
	ctx := context.Background()

	queue, err := deferral.New(rdb, deferral.Config{Name: "kaito"})
	if err != nil {
		log.Fatal(err)
	}
	for i := range 20 {
		if _, err := queue.Push(ctx, deferral.Write{Payload: fmt.Append(nil, "write ", i)}); err != nil {
			log.Fatal(err)
		}
	}
	popped, err := queue.Pop(ctx, 10, 3*time.Second)
	fmt.Println("at once:", len(popped), err)

	later(3 * time.Second)
	popped, err = queue.Pop(ctx, 10, 3*time.Second)
	fmt.Println("3 s later:", len(popped), err)
	another, err := queue.Pop(ctx, 4, 2*time.Second)
	fmt.Println("another process:", len(another), err)
	fmt.Printf("%s, %s\n", popped[0].Payload, another[0].Payload)

	for _, d := range append(popped, another...) {
		if err := d.Ack(ctx); err != nil { // it took effect
			log.Fatal(err)
		}
	}
	// Output:
	// at once: 0 <nil>
	// 3 s later: 10 <nil>
	// another process: 4 <nil>
	// write 0, write 10
}

// Something is to run once at a given time, in whichever process comes first.
// Every process may push it: the ID makes it one.
func ExampleWrite_at() {
	rdb, later, stop := startRedis()
	defer stop()
	ctx := context.Background()

	queue, err := deferral.New(rdb, deferral.Config{Name: "reminders"})
	if err != nil {
		log.Fatal(err)
	}
	now, err := rdb.Time(ctx).Result() // At is a moment by Redis's clock
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if _, err := queue.Push(ctx, deferral.Write{ID: "remind 42", At: now.Add(time.Minute)}); err != nil {
			log.Fatal(err)
		}
	}
	popped, err := queue.Pop(ctx, 10, 0)
	fmt.Println("now:", len(popped), err)

	later(time.Minute)
	for range 3 {
		popped, err = queue.Pop(ctx, 10, 0)
		fmt.Println("one minute later:", len(popped), err)
		for _, d := range popped {
			fmt.Println("running", d.ID)
			if err := d.Ack(ctx); err != nil {
				log.Fatal(err)
			}
		}
	}
	// Output:
	// now: 0 <nil>
	// one minute later: 1 <nil>
	// running remind 42
	// one minute later: 0 <nil>
	// one minute later: 0 <nil>
}

// A message with an ID, a content and a delay. It is stored in one step, so
// there is never a message without its content; pushing it again changes
// nothing, and pushing another under its ID is an error.
func ExampleQueue_Push() {
	rdb, later, stop := startRedis()
	defer stop()
	ctx := context.Background()

	queue, err := deferral.New(rdb, deferral.Config{Name: "messages"})
	if err != nil {
		log.Fatal(err)
	}
	message := deferral.Write{ID: "m1", Payload: []byte("hello"), Delay: 10 * time.Second}
	fmt.Println(queue.Push(ctx, message))
	fmt.Println(queue.Push(ctx, message))
	message.Payload = []byte("goodbye")
	_, err = queue.Push(ctx, message)
	fmt.Println(errors.Is(err, deferral.ErrMismatch))

	later(10 * time.Second)
	popped, err := queue.Pop(ctx, 10, 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range popped {
		fmt.Printf("%s: %s\n", d.ID, d.Payload)
		if err := d.Ack(ctx); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// m1 <nil>
	// m1 <nil>
	// true
	// m1: hello
}

// What fails is tried again every so often. Redis counts the attempts, also
// those of processes that died; after the last one it becomes a dead letter,
// where an operator can see and revive it.
func ExampleDelivery_Retry() {
	rdb, later, stop := startRedis()
	defer stop()
	ctx := context.Background()

	queue, err := deferral.New(rdb, deferral.Config{Name: "hooks"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Push(ctx, deferral.Write{ID: "hook", Resource: "shop 7"}); err != nil {
		log.Fatal(err)
	}
	call := func(*deferral.Delivery) error { return errors.New("503 from the shop") }

	const attempts, every = 3, 5 * time.Second
	for range 4 {
		popped, err := queue.Pop(ctx, 10, 0)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("popped:", len(popped))
		for _, d := range popped {
			switch cause := call(d); {
			case cause == nil:
				err = d.Ack(ctx)
			case d.Attempt < attempts:
				fmt.Println("attempt", d.Attempt, "failed:", cause)
				err = d.Retry(ctx, every, cause)
			default:
				fmt.Println("attempt", d.Attempt, "was the last:", cause)
				err = d.Bury(ctx, cause)
			}
			if err != nil {
				log.Fatal(err)
			}
		}
		later(every)
	}
	// Output:
	// popped: 1
	// attempt 1 failed: 503 from the shop
	// popped: 1
	// attempt 2 failed: 503 from the shop
	// popped: 1
	// attempt 3 was the last: 503 from the shop
	// popped: 0
}

// Acknowledged delivery: what was popped and not acknowledged within LockTTL
// comes again, because whoever popped it must have died.
func ExampleDelivery_Ack() {
	rdb, later, stop := startRedis()
	defer stop()
	ctx := context.Background()

	queue, err := deferral.New(rdb, deferral.Config{Name: "jobs", LockTTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := queue.Push(ctx, deferral.Write{ID: "job"}); err != nil {
		log.Fatal(err)
	}
	for _, passes := range []time.Duration{29 * time.Second, time.Second, 0} {
		popped, err := queue.Pop(ctx, 1, 0)
		fmt.Println("popped:", len(popped), err)
		for _, d := range popped {
			fmt.Println("attempt", d.Attempt)
			if d.Attempt == 2 { // the first one's process has died
				fmt.Println("acknowledged:", d.Ack(ctx))
			}
		}
		later(passes)
	}
	popped, err := queue.Pop(ctx, 1, 0)
	fmt.Println("popped:", len(popped), err)
	// Output:
	// popped: 1 <nil>
	// attempt 1
	// popped: 0 <nil>
	// popped: 1 <nil>
	// attempt 2
	// acknowledged: <nil>
	// popped: 0 <nil>
}

// What an operator looks at, and does. The queue of a worker is Worker.Queue.
func ExampleQueue_Stats() {
	rdb, later, stop := startRedis()
	defer stop()
	ctx := context.Background()
	queue, err := deferral.New(rdb, deferral.Config{Name: "accounts"})
	if err != nil {
		log.Fatal(err)
	}
	for _, id := range []string{"p1", "p2", "p3"} {
		if _, err := queue.Push(ctx, deferral.Write{ID: id, Resource: "alice"}); err != nil {
			log.Fatal(err)
		}
	}
	if popped, err := queue.Pop(ctx, 1, 0); err != nil || popped[0].Bury(ctx, errors.New("no such account")) != nil {
		log.Fatal(err)
	}
	later(time.Minute)

	stats, err := queue.Stats(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(stats.Waiting, "wait in", stats.Lanes, "lanes, the oldest for", stats.Oldest.Round(time.Second))
	deepest, err := queue.Deepest(ctx, 10)
	if err != nil {
		log.Fatal(err)
	}
	for _, lane := range deepest {
		fmt.Println(lane.Name, "has", lane.Depth, "writes, its head was tried", lane.Attempts, "times")
	}
	for letter, err := range queue.Dead(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(letter.ID, "of", letter.Resource, "is dead:", letter.Cause)
		if err := queue.Revive(ctx, letter.Resource, letter.ID); err != nil { // or Forget
			log.Fatal(err)
		}
	}
	// Output:
	// 2 wait in 1 lanes, the oldest for 1m0s
	// alice has 2 writes, its head was tried 0 times
	// p1 of alice is dead: no such account
}
