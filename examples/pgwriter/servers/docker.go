package servers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/ory/dockertest/v3"
	docker "github.com/ory/dockertest/v3/docker"
)

// The image of postgresContainer.
const (
	image = "postgres"
	tag   = "17-alpine"
)

func postgresContainer(ctx context.Context, w wanted) (*Server, error) {
	pool, err := dockertest.NewPool("")
	if err != nil {
		return nil, err
	}
	asking, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if err := pool.Client.PingWithContext(asking); err != nil {
		return nil, fmt.Errorf("no Docker engine answers: %w", err)
	}
	if err := pull(ctx, pool, w.say); err != nil {
		return nil, err
	}
	password := rand.Text()
	c, err := pool.RunWithOptions(&dockertest.RunOptions{
		Repository: image, Tag: tag, Env: []string{"POSTGRES_PASSWORD=" + password},
		Cmd: []string{"postgres", "-c", "fsync=" + w.fsync, "-c", "max_connections=200"},
	}, func(h *docker.HostConfig) { h.AutoRemove = true })
	if err != nil {
		return nil, err
	}
	// Should this process be killed, Docker is to remove the container.
	_ = c.Expire(3600)
	url := fmt.Sprintf("postgres://postgres:%s@%s/postgres?sslmode=disable", password, c.GetHostPort("5432/tcp"))
	if err := answering(ctx, url); err != nil {
		return nil, errors.Join(err, pool.Purge(c))
	}
	return &Server{URL: url, About: "a container of " + image + ":" + tag, stop: func() { _ = pool.Purge(c) }}, nil
}

// pull gets the image, unless it is there.
func pull(ctx context.Context, pool *dockertest.Pool, say func(string)) error {
	if _, err := pool.Client.InspectImage(image + ":" + tag); err == nil {
		return nil
	}
	say("pulling the Docker image " + image + ":" + tag)
	err := pool.Client.PullImage(docker.PullImageOptions{Repository: image, Tag: tag, Context: ctx}, docker.AuthConfiguration{})
	if err != nil {
		return fmt.Errorf("pull %s:%s: %w", image, tag, err)
	}
	return nil
}

// answering waits until the Postgres at url can be used. The image starts it
// twice, the first time for itself only, so one answer may be too early: the
// port is published all along, but that first server does not listen on it.
func answering(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := pingPostgres(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the container did not come up: %w", err)
		case <-tick.C:
		}
	}
}
