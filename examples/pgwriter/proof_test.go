package main

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// history is four writes of two writers to two accounts, as they should be.
const history = `
INSERT INTO accounts VALUES ('a', 30, 3), ('b', 5, 1);
INSERT INTO submitted VALUES
    ('w0-1', 0, 1, 'a', 10, 100, 110),
    ('w1-1', 1, 1, 'a', 15, 105, 115),
    ('w0-2', 0, 2, 'a',  5, 120, 130),
    ('w1-2', 1, 2, 'b',  5, 125, 135);
INSERT INTO entries VALUES
    ('a', 1, 'w0-1', 10,  0, 10, 1, '2020-01-01 00:00:01', '2020-01-01 00:00:02'),
    ('a', 2, 'w1-1', 15, 10, 25, 2, '2020-01-01 00:00:03', '2020-01-01 00:00:04'),
    ('a', 3, 'w0-2',  5, 25, 30, 3, '2020-01-01 00:00:05', '2020-01-01 00:00:06'),
    ('b', 1, 'w1-2',  5,  0,  5, 4, '2020-01-01 00:00:05', '2020-01-01 00:00:06');`

func TestChecksFindPlantedViolations(t *testing.T) {
	_, database := start(t)
	for i, c := range []struct {
		name, plant string
		want        []string
	}{
		{"nothing planted", "", nil},
		{"a lost write", `DELETE FROM entries WHERE write = 'w1-2'`, []string{"lost"}},
		{"a lost write, its effect on the balance too", `DELETE FROM entries WHERE write = 'w1-2'; UPDATE accounts SET balance = 0 WHERE account = 'b'`,
			[]string{"lost", "balance"}},
		{"a write that was never known to be accepted and is not there",
			`DELETE FROM entries WHERE write = 'w1-2'; UPDATE accounts SET balance = 0 WHERE account = 'b';
			 UPDATE submitted SET returned = NULL WHERE write = 'w1-2'`, nil},
		{"a write that was never known to be accepted and is there", `UPDATE submitted SET returned = NULL WHERE write = 'w1-2'`, nil},
		{"a duplicate", `INSERT INTO entries VALUES ('b', 2, 'w1-2', 5, 5, 10, 5, '2020-01-01 00:00:07', '2020-01-01 00:00:08');
			 UPDATE accounts SET balance = 10 WHERE account = 'b'`, []string{"twice", "balance"}},
		{"a foreign write", `INSERT INTO entries VALUES ('b', 2, 'w9-9', 0, 5, 5, 5, '2020-01-01 00:00:07', '2020-01-01 00:00:08')`, []string{"foreign"}},
		{"another amount than was submitted", `UPDATE submitted SET amount = 6 WHERE write = 'w1-2'`, []string{"foreign", "balance"}},
		{"a writer's writes in the wrong order, by no clock", `UPDATE submitted SET seq = 3 WHERE write = 'w0-1'`, []string{"sequence"}},
		{"another writer's write overtaken", `UPDATE submitted SET called = 116 WHERE write = 'w0-1'`, []string{"overtaken"}},
		{"not overtaken, for they were submitted at one time", `UPDATE submitted SET called = 115 WHERE write = 'w0-1'`, nil},
		{"an overlap", `UPDATE entries SET entered = '2020-01-01 00:00:03.9' WHERE write = 'w0-2'`, []string{"overlap"}},
		{"an overlap with one long before", `UPDATE entries SET finished = '2020-01-01 00:00:05.1' WHERE write = 'w0-1'`, []string{"overlap"}},
		{"an update that was lost", `UPDATE entries SET before = 10, after = 15 WHERE write = 'w0-2'; UPDATE accounts SET balance = 15 WHERE account = 'a'`,
			[]string{"chain", "balance"}},
		{"a first write that found money", `UPDATE entries SET before = 1 WHERE write = 'w1-2'`, []string{"chain"}},
		{"a fence that went back", `UPDATE entries SET fence = 0 WHERE write = 'w0-2'`, []string{"fence"}},
		{"two writes under one fence", `UPDATE entries SET fence = 2 WHERE write = 'w0-2'`, nil},
		{"a wrong balance", `UPDATE accounts SET balance = 31 WHERE account = 'a'`, []string{"balance"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := schema(t, database.URL, fmt.Sprintf("planted_%d", i))
			for _, sql := range []string{schemaSource, history, c.plant} {
				if _, err := db.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			if got := found(t, db); !slices.Equal(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

// schema opens a new schema.
func schema(t *testing.T, url, name string) *pgxpool.Pool {
	t.Helper()
	db, err := openLedger(t.Context(), url, name, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	if _, err := db.Exec(t.Context(), "CREATE SCHEMA "+pgx.Identifier{name}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	return db
}

// found names the checks that found something.
func found(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	findings, err := prove(t.Context(), db, false)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, f := range findings {
		if (f.count > 0) != (len(f.examples) > 0) {
			t.Errorf("%s: %d found, with the examples %q", theChecks[i].file, f.count, f.examples)
		}
		if f.count > 0 {
			names = append(names, theChecks[i].file)
		}
	}
	return names
}

// What the processes told has to come into the database as it was.
func TestSubmissionsAreSavedAsTheyWere(t *testing.T) {
	_, database := start(t)
	db := schema(t, database.URL, "saved")
	if _, err := db.Exec(t.Context(), schemaSource); err != nil {
		t.Fatal(err)
	}
	c := newLoad(load{Processes: 1, Writers: 2, Resources: 3, Writes: 5, Seed: 1})
	subs := [][]submission{{{called: 1, returned: 2}, {called: 3}, {}}, {{called: 4, returned: 5, deferred: true}, {}}}
	if err := saveSubmissions(t.Context(), db, c, subs); err != nil {
		t.Fatal(err)
	}
	got := rows(t.Context(), t, db, `SELECT write || ' ' || called || ' ' || coalesce(returned::text, 'never') FROM submitted ORDER BY called`)
	if want := []string{"w0-1 1 2", "w0-2 3 never", "w1-1 4 5"}; !slices.Equal(got, want) {
		t.Errorf("saved %q, want %q", got, want)
	}
}

func rows(ctx context.Context, t *testing.T, db *pgxpool.Pool, sql string) []string {
	t.Helper()
	r, err := db.Query(ctx, sql)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := pgx.CollectRows(r, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return texts
}
