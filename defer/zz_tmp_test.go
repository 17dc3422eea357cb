package deferral_test
import ("testing";"github.com/deferlock/deferlock/internal/redistest"; deferral "github.com/deferlock/deferlock/defer")
func TestTmp(t *testing.T){ redistest.Each(t, func(t *testing.T, s *redistest.Server){
 rdb := s.Client(t)
 q,_ := deferral.New(rdb, deferral.Config{Name:"a"})
 before := s.Commands(t)
 fs, err := q.CheckSetup(t.Context())
 t.Log(s.Commands(t)-before, err)
 for _,f := range fs { t.Log(f) }
 t.Log(rdb.Keys(t.Context(),"*").Val())
 fs, err = q.Check(t.Context())
 t.Log(len(fs), err)
})}
