package serve

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"krater/actors/engine"
	"krater/transport/client"
	"krater/transport/enginetest"
	"krater/transport/responses"
	"krater/transport/server"
)

// rig is a server with a scripted engine on an in-memory network and a clock of its own: what takes
// 30 ms takes exactly that.
type rig struct {
	t      *testing.T
	engine *enginetest.Engine
	door   *responses.Door
	server *httptest.Server
}

// inBubble runs a test on the fake clock. At its end no stream of the engine and no goroutine may
// be left.
func inBubble(t *testing.T, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New()
		e.SetInfo(func(i *engine.Info) { i.Context = 4096 })
		srv := server.New(e, server.Options{MaxConcurrent: 1 << 16})
		door := responses.New(e, responses.Options{Owner: srv.Owner, AllowOrigin: srv.OriginAllowed, ReadBody: srv.ReadBody, Acquire: srv.Acquire})
		door.Mount(srv.Route)
		r := &rig{t: t, engine: e, door: door, server: httptest.NewTestServer(t, srv.Handler())}
		r.server.Client() // starts the network
		test(r)
		if err := door.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait() // the server learns that its clients have gone
		if n := e.Open(); n != 0 {
			t.Errorf("%d streams are open at the end", n)
		}
	})
}

// transport returns an HTTP client for the in-memory network.
func (r *rig) transport(int) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: r.server.Client().Transport.(*http.Transport).DialContext, MaxIdleConnsPerHost: 64}}
}

func (r *rig) client() *client.Client { return client.New(r.server.URL, "", r.transport(1)) }

// plan is one of a door with prompts of 40 and answers of 10 tokens.
func (r *rig) plan(doors ...string) *Plan {
	return &Plan{
		URL: r.server.URL, Doors: doors, Mix: Mix{Prompt: fixed(40), Answer: fixed(10), Seed: 1}, Concurrency: []int{1},
		Load: Load{Requests: 6, Arrivals: Arrivals{Kind: "poisson"}, OpenMost: 1 << 10, Seed: 1}, dial: r.transport,
	}
}

// run measures and gives the points.
func (r *rig) run(p *Plan) []*Point {
	r.t.Helper()
	report, err := p.Run(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return report.Points
}

func fixed(n int) Lengths { return Lengths{"fixed", float64(n), float64(n)} }

// paced makes every answer n tokens of one byte by the clock.
func (r *rig) paced(n int, queue, first, each time.Duration) {
	pieces := make([]string, n)
	for i := range pieces {
		pieces[i] = "x"
	}
	r.engine.Choose(func(*engine.Request) (enginetest.Script, error) {
		return enginetest.Timed(enginetest.Finish(engine.FinishLength, pieces...), queue, first, each), nil
	})
}

// near reports whether a figure in milliseconds is within what a histogram's place is wide.
func near(got, want float64) bool { return got >= want*0.995 && got <= want*1.005 }
