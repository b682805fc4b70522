package console

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"krater/cmd/krater/term"
	"krater/scheduler/jsonlines"
)

// LogFlags say what a server or a worker logs.
type LogFlags struct {
	LogLevel  string `help:"Lowest level that is logged: ${enum}." enum:"debug,info,warn,error" default:"info"`
	LogFormat string `help:"Format of the log: ${enum}. auto is text on a terminal and JSON elsewhere." enum:"auto,json,text" default:"auto"`

	out *lossyWriter // destination of the log
}

// Logger writes to standard error: text on a terminal, JSON lines elsewhere. The progress of the
// load is a bar on a terminal, and log lines elsewhere.
func (c *LogFlags) Logger(e *Env) (log zerolog.Logger, err error) {
	level, err := zerolog.ParseLevel(c.LogLevel)
	if err != nil {
		return zerolog.Nop(), err
	}
	c.out = &lossyWriter{w: e.Err}
	out, bar, text := jsonlines.Writer(c.out), io.Writer(nil), c.LogFormat == "text" || c.LogFormat == "auto" && term.Is(e.Err)
	if text {
		bar = e.Err
	}
	e.Progress = term.NewProgress(bar, ProgressEvery, func(s term.State) { LogProgress(log)(s) })
	if text {
		out = zerolog.ConsoleWriter{Out: e.Progress.Beside(c.out), TimeFormat: time.TimeOnly, NoColor: !term.Colours(e.Err), FormatPrepare: showMessage}
	}
	log = zerolog.New(out).Level(level).With().Timestamp().Logger()
	return log, nil
}

// showMessage makes the message of a log line safe to show. The writer quotes the other fields.
func showMessage(line map[string]any) error {
	if text, ok := line[zerolog.MessageFieldName].(string); ok {
		line[zerolog.MessageFieldName] = term.Shown(text)
	}
	return nil
}

// lossyWriter writes the lines of a log. It drops and counts lines that cannot be written: a server
// does not end because its log has no reader any more.
type lossyWriter struct {
	w    io.Writer
	lost atomic.Uint64
}

// Write implements io.Writer. It returns no error.
func (l *lossyWriter) Write(line []byte) (int, error) {
	if _, err := l.w.Write(line); err != nil {
		l.lost.Add(1)
	}
	return len(line), nil
}

// Dropped counts lost lines.
func (c *LogFlags) Dropped() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "krater:log_lines_dropped", Help: "Lines of the log that could not be written.",
	}, func() float64 { return float64(c.out.lost.Load()) })
}
