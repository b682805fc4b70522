package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Default returns the options of a command line without flags, as the tags give them.
func Default() Options {
	var o Options
	err := eachOption(reflect.ValueOf(&o).Elem(), func(v reflect.Value, tag reflect.StructTag) error {
		text, ok := tag.Lookup("default")
		if !ok {
			return nil
		}
		return setOption(v, text)
	})
	if err != nil {
		panic(err) // panic(err) // a tag of this package is wrong
	}
	return o
}

// eachOption calls f for every option of a struct and of those embedded in it.
func eachOption(v reflect.Value, f func(reflect.Value, reflect.StructTag) error) error {
	for field, value := range v.Fields() {
		var err error
		if field.Anonymous {
			err = eachOption(value, f)
		} else {
			err = f(value, field.Tag)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", field.Name, err)
		}
	}
	return nil
}

func setOption(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Interface().(type) {
	case time.Duration:
		d, err := time.ParseDuration(text)
		v.SetInt(int64(d))
		return err
	case int:
		n, err := strconv.Atoi(text)
		v.SetInt(int64(n))
		return err
	case bool:
		b, err := strconv.ParseBool(text)
		v.SetBool(b)
		return err
	}
	v.SetString(text)
	return nil
}

// checkChoices refuses a value that the option's list does not name. The command line is checked
// against the same lists when it is read; a program may set any value.
func (o *Options) checkChoices() error {
	return eachOption(reflect.ValueOf(o).Elem(), func(v reflect.Value, tag reflect.StructTag) error {
		enum, ok := tag.Lookup("enum")
		if choices := strings.Split(enum, ","); ok && !slices.Contains(choices, v.String()) {
			return fmt.Errorf("%q: want one of %s", v.String(), strings.Join(choices, ", "))
		}
		return nil
	})
}
