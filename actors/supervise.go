package actors

import (
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"krater/scheduler/files"
)

// errFatal wraps the cause after which the pipeline serves no requests any more.
var errFatal = errors.New("the pipeline has failed")

const (
	// An actor may fail restartsMax times within restartsWithin. Then the pipeline stops, because a
	// fault that comes back with every batch does not go away.
	restartsMax    = 10
	restartsWithin = 10 * time.Second
)

// supervisor decides what becomes of a failed actor. The shell has reported
// the batch that it worked on before this is called.
//
//	actor                      decision
//	schedule                   stop: its state cannot be trusted after a panic
//	any, weights are gone      stop: no batch can be computed any more
//	any other                  restart with a fresh node over the same weights and KV cache
//	any other, too often       stop: the fault comes back with every batch
//
// A stop fails every open request and makes the pipeline unready; the process
// decides whether to end.
type supervisor struct {
	pipeline *Pipeline
	restart  actor.SupervisorStrategy
}

func newSupervisor(p *Pipeline) *supervisor {
	return &supervisor{
		pipeline: p,
		restart:  actor.NewOneForOneStrategy(restartsMax, restartsWithin, func(any) actor.Directive { return actor.RestartDirective }),
	}
}

// HandleFailure implements actor.SupervisorStrategy.
func (s *supervisor) HandleFailure(sys *actor.ActorSystem, sv actor.Supervisor, child *actor.PID, rs *actor.RestartStatistics, reason, message any) {
	if lost, ok := errors.AsType[*files.LostError](files.Caught(reason)); ok {
		sv.StopChildren(child)
		s.pipeline.fail(fmt.Errorf("%w: %w", errFatal, lost))
		return
	}
	if child.Id == s.pipeline.routes.schedule.name() || rs.NumberOfFailures(restartsWithin) >= restartsMax {
		sv.StopChildren(child)
		s.pipeline.fail(fmt.Errorf("%w: %s: %v", errFatal, child.Id, reason))
		return
	}
	s.restart.HandleFailure(sys, sv, child, rs, reason, message)
}
