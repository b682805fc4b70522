package responses

import "time"

// hold is one more connection that wants the answer: a grace time that runs ends. A new response is
// held once, by its creator.
func (r *response) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holders++
	if r.grace != nil {
		r.grace.Stop()
		r.grace = nil
	}
}

// release returns a hold. When the last hold is released before the end, the engine's request is
// cancelled: at once, after the request's grace time, or not at all if it runs in the background.
func (r *response) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holders--; r.holders > 0 || !r.ended.IsZero() || r.plan.background {
		return
	}
	if r.plan.grace == 0 {
		r.stop(errLost)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(r.plan.grace, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.grace == timer { // else it was held again while this waited
			r.stop(errLost)
		}
	})
	r.grace = timer
}
