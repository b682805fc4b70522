package plot

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Figure is a part of a picture: a Chart, a Heat or Curves.
type Figure interface {
	// size is its height, margins included; every figure has the picture's width.
	size() vg.Length
	// draw fills a canvas of that size.
	draw(c draw.Canvas) error
	// name is how an error calls it.
	name() string
}

// SaveFigures draws figures one below the other into a file, by its ending.
func SaveFigures(path string, figures ...Figure) error {
	if err := CheckPath(path); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = WriteFigures(f, strings.ToLower(filepath.Ext(path)), figures...)
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}

// WriteFigures is SaveFigures to a writer; format is one of Formats.
func WriteFigures(w io.Writer, format string, figures ...Figure) error {
	if len(figures) == 0 {
		return fmt.Errorf("plot: nothing to draw")
	}
	var total vg.Length
	for _, f := range figures {
		total += f.size()
	}
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case ".svg":
		canvas = vgsvg.New(width, total)
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, total), vgimg.UseDPI(dpi), vgimg.UseBackgroundColor(color.White))}
	default:
		return fmt.Errorf("plot: format %q is none of %s", format, strings.Join(Formats, ", "))
	}
	all, top := draw.New(canvas), total
	for _, f := range figures {
		if err := f.draw(draw.Crop(all, margin, -margin, top-f.size()+margin, top-total-margin)); err != nil {
			return fmt.Errorf("plot: %s: %w", f.name(), err)
		}
		top -= f.size()
	}
	_, err := canvas.WriteTo(w)
	return err
}
