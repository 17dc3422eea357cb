package measure

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is what a Redis says of itself at one moment.
type Server struct {
	Commands int64            // executed, those within scripts included
	Calls    map[string]int64 // the same by name
	CPU      time.Duration    // user and system
	Memory   int64            // used_memory, in bytes
	Clients  int64            // connections
}

// ReadServer asks rdb's Redis. The question itself is not in the answer.
func ReadServer(ctx context.Context, rdb *redis.Client) (Server, error) {
	info, err := rdb.Info(ctx, "stats", "clients", "cpu", "memory", "commandstats").Result()
	if err != nil {
		return Server{}, fmt.Errorf("measure: INFO: %w", err)
	}
	s := Server{Calls: map[string]int64{}}
	for line := range strings.Lines(info) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		if err := s.read(name, value); err != nil {
			return Server{}, fmt.Errorf("measure: INFO says %s: %w", strings.TrimSpace(line), err)
		}
	}
	return s, nil
}

func (s *Server) read(name, value string) (err error) {
	var seconds float64
	switch {
	case name == "total_commands_processed":
		s.Commands, err = strconv.ParseInt(value, 10, 64)
	case name == "connected_clients":
		s.Clients, err = strconv.ParseInt(value, 10, 64)
	case name == "used_memory":
		s.Memory, err = strconv.ParseInt(value, 10, 64)
	case name == "used_cpu_sys", name == "used_cpu_user":
		seconds, err = strconv.ParseFloat(value, 64)
		s.CPU += time.Duration(seconds * float64(time.Second))
	case strings.HasPrefix(name, "cmdstat_"):
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		s.Calls[strings.TrimPrefix(name, "cmdstat_")], err = strconv.ParseInt(calls, 10, 64)
	}
	return err
}

// Since is what s has more than an earlier look at the same server, without
// the INFO of that look.
func (s Server) Since(before Server) Server {
	d := Server{
		Commands: s.Commands - before.Commands - 1,
		CPU:      s.CPU - before.CPU,
		Memory:   s.Memory - before.Memory,
		Calls:    map[string]int64{},
	}
	for name, n := range s.Calls {
		if n -= before.Calls[name]; n > 0 && name != "info" {
			d.Calls[name] = n
		}
	}
	return d
}

// Process is what this process has used at one moment.
type Process struct {
	Allocations uint64
	CPU         time.Duration // 0 where the system does not say
}
