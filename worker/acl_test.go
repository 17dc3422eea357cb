package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	deferral "github.com/deferlock/deferlock/defer"
	"github.com/deferlock/deferlock/internal/redistest"
	"github.com/deferlock/deferlock/worker"
)

// documentedRights is the ACL rule in the README, for the Name accounts.
func documentedRights(t *testing.T) []any {
	t.Helper()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?s)    ACL SETUSER accounts (.*?)\n\n`).FindSubmatch(page)
	if m == nil {
		t.Fatal("the README has no ACL rule any more")
	}
	var rights []any
	for _, f := range strings.Fields(strings.ReplaceAll(string(m[1]), "\\\n", " ")) {
		rights = append(rights, f)
	}
	return rights
}

// The rule in the README lets a user do everything, and nothing else.
func TestDocumentedRightsAreEnough(t *testing.T) {
	s := redistest.Real(t)
	admin := s.Client(t)
	if err := admin.Do(t.Context(), append([]any{"acl", "setuser", "accounts"}, documentedRights(t)...)...).Err(); err != nil {
		t.Fatal(err)
	}
	rdb := s.ClientWith(t, func(o *redis.Options) { o.Username, o.Password = "accounts", "secret" })
	if err := rdb.Set(t.Context(), "another", 1, 0).Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Errorf("the user may touch other keys: %v", err)
	}

	w := newWorker(t, rdb, worker.Config{Name: "accounts", MaxAttempts: 1})
	done := make(chan string, 100)
	x := wrap(t, w, func(_ context.Context, e entry) error {
		if e.Text == "fails" {
			return errors.New("it fails")
		}
		done <- e.ID
		return nil
	})
	stop := start(t, w)
	for i := range 20 {
		if _, err := x.Do(t.Context(), entry{To: "alice", ID: fmt.Sprint("d", i)}); err != nil {
			t.Fatal(err)
		}
		push(t, x, entry{To: "alice", ID: fmt.Sprint("p", i)})
	}
	push(t, x, entry{To: "bob", ID: "b", Text: "fails"})
	for range 40 {
		<-done
	}
	redistest.Wait(t, "the dead letter", func() bool {
		st, err := w.Queue().Stats(t.Context())
		return err == nil && st.Dead == 1
	})
	stop()

	found, err := w.Queue().Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Code == deferral.CodeRights || f.Code == deferral.CodeNotChecked || f.Code == deferral.CodeRefused {
			t.Errorf("%s: %s", f.Code, f.Text)
		}
	}
	redistest.Audit(t, admin, "accounts")
}
