package console

import (
	"math"

	"github.com/rs/zerolog"

	"krater/actors/local"
	"krater/actors/local/config"
	"krater/actors/local/predict"
	"krater/bench/meter"
	"krater/cmd/krater/term"
	"krater/stages/source"
)

// ReportTo logs the progress and notices of a load.
func ReportTo(log zerolog.Logger, p *term.Progress) config.Reporter {
	return config.Reporter{
		Notice:   func(line string) { log.Warn().Msg(line) },
		Info:     func(line string) { log.Info().Msg(line) },
		Progress: func(phase string, done, all int64) { p.Set(phase, term.Bytes, done, all) },
		Measured: Measuring(p),
		End:      p.End,
	}
}

// ReportOn prints the progress and notices of a load for people.
func ReportOn(e *Env) config.Reporter {
	r := ReportTo(zerolog.Nop(), e.Shown())
	r.Notice = func(line string) { e.Say(line) }
	r.Info = r.Notice
	return r
}

// ForLoad returns the configuration of a load that reports to people.
func ForLoad(e *Env, src *source.Source, f config.Options, of config.Case) local.Config {
	return local.Config{Source: src, Options: f, Case: of, Log: zerolog.New(e.Err).Level(zerolog.WarnLevel), Machine: e.Here(), Meter: MeterOf(e, meter.StartMeter), Report: ReportOn(e)}
}

// MeterOf returns what measures this machine.
func MeterOf(e *Env, usual meter.KernelMeter) predict.Meter {
	if e.Meter != nil {
		return e.Meter
	}
	return usual
}

// LogProgress logs the progress of long work.
func LogProgress(log zerolog.Logger) func(term.State) {
	return func(s term.State) {
		l := log.Info().Str("phase", s.Phase).Float64("share", math.Round(1000*s.Share())/1000).Str("done", s.Amounts())
		if rate := s.Rate(); rate != "" {
			l = l.Str("rate", rate)
		}
		if left, ok := s.Left(); ok {
			l = l.Str("left", term.Duration(left))
		}
		l.Msg("loading")
	}
}
