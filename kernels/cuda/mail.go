//go:build cuda

package cuda

import (
	"errors"
	"fmt"

	"krater/kernels/cuda/mail"
	"krater/kernels/cuda/rt"
	"krater/kernels/device"
)

// mailbox is a device.Mail.
type mailbox struct {
	*mail.Host
	dev  *Device
	box  mail.Box
	host []byte
}

// NewMail makes a mailbox in host memory that the card has mapped. Its rows
// are multiples of 8 wide.
func (d *Device) NewMail(o device.MailSize) (device.Mail, error) {
	m := &mailbox{dev: d, box: mail.Box{Size: mail.Size{MailSize: o, RowType: d.RowType()}}}
	err := m.box.Check()
	if err == nil {
		m.host, m.box.Host, err = d.card.MapHost(m.box.Bytes())
	}
	if err == nil {
		if m.box.State, err = d.card.Alloc(mail.StateBytes, false); err != nil {
			err = errors.Join(err, d.card.FreeHost(m.host))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s: a mailbox: %w", d.name, err)
	}
	m.Host = mail.NewHost(m.box.Size, m.host, m.clear)
	return m, nil
}

// clear has the card wait again.
func (m *mailbox) clear() error {
	return m.dev.apart(func(s *rt.Stream) { mail.Clear(&s.List, &m.box) })
}

// Close frees the mailbox; steps that use it, and graphs of them, must not run any more.
func (m *mailbox) Close() {
	_ = m.dev.card.FreeHost(m.host) // a lost card's memory is freed by the driver
	_ = m.dev.card.Release(m.box.State)
}

// box is the mailbox behind m, which must be this device's.
func (d *Device) box(op string, m device.Mail) *mail.Box {
	own, ok := m.(*mailbox)
	if !ok || own.dev != d {
		refuse(op, "a mailbox of another device")
	}
	return &own.box
}
