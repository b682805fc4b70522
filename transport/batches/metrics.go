package batches

import (
	"github.com/prometheus/client_golang/prometheus"

	"krater/scheduler/batchqueue"
)

var (
	descLines = prometheus.NewDesc("krater:batch_lines",
		"Lines of the batches that are remembered: waiting, running, completed, failed.", []string{"state"}, nil)
	descBatches = prometheus.NewDesc("krater:batches", "Batches that are remembered, by status.", []string{"status"}, nil)
	descBytes   = prometheus.NewDesc("krater:batch_store_bytes", "Bytes of the files of the batch store.", nil, nil)
)

// Describe implements prometheus.Collector.
func (d *Door) Describe(out chan<- *prometheus.Desc) {
	out <- descLines
	out <- descBatches
	out <- descBytes
}

// Collect implements prometheus.Collector.
func (d *Door) Collect(out chan<- prometheus.Metric) {
	t, err := d.store.Totals()
	if err != nil {
		out <- prometheus.NewInvalidMetric(descBatches, err)
		return
	}
	gauge := func(desc *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v), labels...)
	}
	running := d.runner.inFlight()
	gauge(descLines, max(0, t.Waiting-running), "waiting")
	gauge(descLines, running, "running")
	gauge(descLines, t.Lines.Completed, "completed")
	gauge(descLines, t.Lines.Failed, "failed")
	for _, s := range batchqueue.Statuses {
		gauge(descBatches, t.Batches[s], string(s))
	}
	gauge(descBytes, int(t.Bytes))
}
